#pragma once
#ifndef GSF
#define GSF 2
#define GBF 5
#define GSR 2
#define GBR 5
#define GSC 2
#define GBC 5
#endif
