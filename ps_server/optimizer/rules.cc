#include "ps_server/optimizer/rules.h"

#include "absl/strings/string_view.h"
#include "common/base/check.h"

namespace evergrad::ps_server::optimizer {
namespace {

using optimizers::Settings;

float Rounded(double number) { return static_cast<float>(number); }
// Returns 1 - number, subtracted in float64. Keras subtracts in float32, which gives a relative
// difference of 1e-7.
float OneMinus(double number) { return static_cast<float>(1.0 - number); }

AdamRate CorrectedRate(const Settings& s) { return {s.learning_rate, s.beta_1, s.beta_2}; }

FtrlValue ValueOfFtrl(const Settings& s) {
  return {Rounded(s.learning_rate), Rounded(s.l1_regularization_strength),
          Rounded(2 * s.l2_regularization_strength + s.beta / s.learning_rate)};
}

struct Maker {
  absl::string_view type;
  Rule (*make)(const Settings&);
};

constexpr Maker kMakers[] = {
    {"sgd",
     [](const Settings& s) -> Rule {
       // By its own formula, Nesterov without momentum is plain sgd: the term that it adds is 0.
       if (s.momentum == 0) return Sgd{Rounded(s.learning_rate)};
       if (s.nesterov) return Nesterov{Rounded(s.learning_rate), Rounded(s.momentum)};
       return Momentum{Rounded(s.learning_rate), Rounded(s.momentum)};
     }},
    {"adam",
     [](const Settings& s) -> Rule {
       return Adam{CorrectedRate(s), OneMinus(s.beta_1), OneMinus(s.beta_2), Rounded(s.epsilon)};
     }},
    {"adamw",
     [](const Settings& s) -> Rule {
       return AdamW{CorrectedRate(s), OneMinus(s.beta_1), OneMinus(s.beta_2), Rounded(s.epsilon),
                    Rounded(s.weight_decay * s.learning_rate)};
     }},
    {"nadam",
     [](const Settings& s) -> Rule {
       return Nadam{s.learning_rate,    s.beta_1,           s.beta_2,
                    OneMinus(s.beta_1), OneMinus(s.beta_2), Rounded(s.epsilon)};
     }},
    {"adagrad",
     [](const Settings& s) -> Rule {
       return Adagrad{Rounded(s.learning_rate), Rounded(s.epsilon)};
     }},
    {"rowwise_adagrad",
     [](const Settings& s) -> Rule {
       return RowwiseAdagrad{Rounded(s.learning_rate), Rounded(s.epsilon)};
     }},
    {"rmsprop",
     [](const Settings& s) -> Rule {
       if (s.momentum == 0)
         return Rmsprop{Rounded(s.learning_rate), Rounded(s.rho), OneMinus(s.rho),
                        Rounded(s.epsilon)};
       return RmspropMomentum{Rounded(s.learning_rate), Rounded(s.momentum), OneMinus(s.rho),
                              Rounded(s.epsilon)};
     }},
    {"ftrl",
     [](const Settings& s) -> Rule {
       if (s.learning_rate_power == -0.5) return Ftrl{ValueOfFtrl(s)};
       return FtrlPower{ValueOfFtrl(s), -s.learning_rate_power};
     }},
    {"moving_average",
     [](const Settings& s) -> Rule { return MovingAverage{OneMinus(s.momentum)}; }},
    {"counting", [](const Settings&) -> Rule { return Counting{}; }},
};

}  // namespace

Rule RuleOf(const Settings& settings) {
  for (const Maker& maker : kMakers)
    if (maker.type == settings.type) return maker.make(settings);
  EG_CHECK_MSG(false, "a registered optimizer has no update rule");
}

}  // namespace evergrad::ps_server::optimizer
