// The end of a job: the effects of the phases that close it.
//
//   a job that succeeds     final report ─▶ last checkpoint ─▶ files
//   a job that ends early   seal ─▶ report ─▶ last checkpoint ─▶ weights of a failed job ─▶ files
//
// LEDGER line 20a defines the seal.
//
// Not thread-safe: only the control executor calls it. Clock and I/O come from the host.
#pragma once

namespace evergrad::coordinator {

class JobLife;
struct JobParts;

class JobEnd {
 public:
  // `life` and `parts` outlive every call; they may be made after this object.
  JobEnd(JobParts* parts, JobLife* life) : parts_(*parts), life_(*life) {}

  // --- the effects of phases. Functions that return bool return false if the store failed.
  void BeginReport();
  bool BeginSeal();
  void BeginSealedReport();
  bool BeginWriting();
  void WriteFiles();
  void End();  // Keeps only the status, the result and the final report.

  // Ends the seal once it is complete.
  void CheckSealed();
  // Called when nothing is left to save. If the job has failed, exports its weights. Otherwise
  // writes the files.
  void Finish();
  // Returns whether workers may be needed to export the weights of a failed job.
  bool WantsSealedExport() const;

 private:
  JobParts& parts_;
  JobLife& life_;
};

}  // namespace evergrad::coordinator
