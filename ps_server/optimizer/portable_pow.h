// x^y for the one update rule that needs it, with the same bits on every processor. The C library's
// pow may differ in the last bit between processors.
#pragma once

namespace evergrad::ps_server::optimizer {

// Returns x^y, rounded to float, within one unit in the last place of the exact value. Requires
// finite x >= 0 and 0 <= y <= 64. 0^0 is 1.
float PortablePow(float x, double y);

}  // namespace evergrad::ps_server::optimizer
