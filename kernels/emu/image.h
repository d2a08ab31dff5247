// image.h: how the stub driver knows what the stub compiler made.
#pragma once
#include <cstddef>

constexpr char IMAGE_MAGIC[] = "TANDEM-EMU";
constexpr size_t IMAGE_MAGIC_BYTES = sizeof(IMAGE_MAGIC) - 1;
