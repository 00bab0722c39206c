#pragma once

#include <string>
#include <vector>

namespace gnnsparse::emulator {

// Runs the kernel `name` of faults.cpp on the numbers 0 to 63.
std::vector<float> run_fault(const std::string& name);

}  // namespace gnnsparse::emulator
