// maker.cpp: the stub CUDA driver's own word on whose cards it shows.
#include "emu/cuda/driver.h"

namespace emu {

const Maker MAKER = Maker::Nvidia;

}  // namespace emu
