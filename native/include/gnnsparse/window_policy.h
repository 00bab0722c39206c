// How the window kernel multiplies a window by the gathered rows of X: the native counterpart of
// gnnsparse/formats/policy.py, which says what the switches mean and which of them go together.
#pragma once

namespace gnnsparse {

enum class XLoad : int { kVector = 0, kCoalesced = 1, kPlain = 2 };
enum class Staging : int { kNone = 0, kSingle = 1, kDouble = 2 };

struct WindowPolicy {
  bool swapped = true;
  bool deep = true;  // the mma of the larger depth: K = 16 in fp16, 8 in tf32; else half of it
  XLoad x_load = XLoad::kVector;
  bool shuffle = true;
  Staging stage_a = Staging::kNone;
  bool stage_x = false;
  int coarsening = 1;
  bool grid_3d = false;
};

}  // namespace gnnsparse
