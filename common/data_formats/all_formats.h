// The list of data formats. Private to this room.
#pragma once

#include "common/data_formats/data_format.h"

namespace evergrad::config {

const DataFormat& IdxFormat();
const DataFormat& CsvFormat();
const DataFormat& JsonlFormat();
const DataFormat& SyntheticFormat();

// The formats in the order in which the reference and messages list them.
inline constexpr const DataFormat& (*kAllFormats[])() = {IdxFormat, CsvFormat, JsonlFormat,
                                                         SyntheticFormat};

// Names that users may expect, but that are not implemented. Each is refused with "not built yet".
inline constexpr const char* kFormatsNotBuilt[] = {"tsv",    "tfrecord", "parquet",
                                                   "libsvm", "png",      "npz"};

}  // namespace evergrad::config
