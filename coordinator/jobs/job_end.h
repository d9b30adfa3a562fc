// The end of a job: the effects of the phases that close it.
//
//   a job that succeeds        final report ─▶ last checkpoint ─▶ files
//   one that ends early [20a]  seal ─▶ report ─▶ last checkpoint ─▶ weights of a failed job ─▶
//   files
//
// Not thread-safe: the control executor's. No clock and no I/O but through the host.
#pragma once

namespace evergrad::coordinator {

class JobLife;
struct JobParts;

class JobEnd {
 public:
  // `life` and `parts` outlive every call; they may be made after this object.
  JobEnd(JobParts* parts, JobLife* life) : parts_(*parts), life_(*life) {}

  // --- the effects of phases. False: the store failed.
  void BeginReport();
  bool BeginSeal();
  void BeginSealedReport();
  bool BeginWriting();
  void WriteFiles();
  void End();  // What remains are the status, the result and the final report.

  // Ends the seal once it is complete.
  void CheckSealed();
  // Nothing is left to save: exports the weights of a failed job, or else writes the files.
  void Finish();
  // Workers may be needed to export the weights of the failed job.
  bool WantsSealedExport() const;

 private:
  JobParts& parts_;
  JobLife& life_;
};

}  // namespace evergrad::coordinator
