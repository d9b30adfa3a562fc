#include "coordinator/jobs/job_parts.h"

#include <utility>

#include "coordinator/jobs/job_life.h"
#include "coordinator/jobs/job_views.h"

namespace evergrad::coordinator {

JobParts::JobParts(JobHost* job_host, const JobOptions& job_options, JobIdentity identity,
                   JobLife* life)
    : host(job_host),
      options(job_options),
      id(std::move(identity)),
      kind(JobKind::Of(id.spec)),
      plan(&id, &options, &shards, &epochs),
      part{host, options, id, plan.plan(), plan.message(), book, shards, *life},
      epochs({id.spec.training.epochs,
              id.spec.training.evaluate_every_epochs,
              kind.counts_only(),
              {options.step_lines_burst, options.step_lines_per_second, options.curve_points_max}},
             host->Now()),
      rounds(part, &epochs,
             {.round_ended = [this] { source->OnRoundEnded(); },
              .saved = [this](const v1::Manifest& manifest) { source->OnSaved(manifest); },
              .over = [life] { life->end().Finish(); }}),
      resume(part, &epochs, &claims, &rounds,
             {.done = [life] { life->BeginPlan(); },
              .account_context = [this] { return account_context(); }}),
      exports(part, &reading, &rounds,
              {.again =
                   [this, life](MonoTime not_before) {
                     reading.Begin(v1::EXPORT, 1, not_before);
                     life->Pump();
                   },
               .done = [life] { life->OnExportEnded(); },
               .gave_up = [this](absl::string_view why) { sealed_export.GiveUp(why); }}),
      output(part, {.facts = [this] { return FactsOf(*this); },
                    .written = [life] { life->Apply(PhaseEvent::kWritten); }}),
      source(kind.MakeSource(part, SourceParts())),
      sealed_export(part, &reading, &roster, &rounds.status(),
                    {.send_job = [this](TaskId task) { notices.Introduce(task); },
                     .over = [life] { life->end().Finish(); }}),
      reports(part,
              {.phases = &phases,
               .roster = &roster,
               .deaths = &deaths,
               .turn = &turn,
               .training = &training,
               .reading = &reading,
               .sealed_export = &sealed_export,
               .source = &source},
              {.described = std::bind_front(&JobLife::OnDescribed, life),
               .evaluated = [life] { life->OnEvaluated(); },
               .exported = std::bind_front(&ExportFiles::OnExported, &exports)}) {}

ClosureSourceParts JobParts::SourceParts() {
  return {.epochs = &epochs,
          .totals = &totals,
          .rounds = &rounds,
          .claims = &claims,
          .journal = &journal.writer(),
          .grants = &training,
          .account_context = [this] { return account_context(); },
          .revoke = std::bind_front(&TrainingWork::OnCancelled, &training),
          .calls = {.refusal = [this] { return phases.CallsRefusal(id.spec.name); },
                    .waiting_for = [this] { return waits.Text(); }}};
}

}  // namespace evergrad::coordinator
