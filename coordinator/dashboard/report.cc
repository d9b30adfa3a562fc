#include "coordinator/dashboard/report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "coordinator/dashboard/metric_text.h"

namespace evergrad::coordinator {
namespace {

using Json = nlohmann::ordered_json;

std::string Escape(const std::string& text) {
  return absl::StrReplaceAll(
      text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}, {"'", "&#39;"}});
}

std::string Number(double value, int digits) {
  if (!std::isfinite(value)) return "–";
  return std::fabs(value) < 1e7 ? absl::StrFormat("%.*f", digits, value)
                                : absl::StrFormat("%.2e", value);
}

std::string Grouped(std::uint64_t value) {
  std::string digits = absl::StrCat(value);
  for (int at = static_cast<int>(digits.size()) - 3; at > 0; at -= 3)
    digits.insert(static_cast<std::size_t>(at), "\u202f");
  return digits;
}

std::string Bytes(std::uint64_t bytes) {
  if (bytes < 10'000) return absl::StrCat(bytes, " B");
  if (bytes < 10'000'000) return absl::StrFormat("%.1f kB", bytes / 1e3);
  if (bytes < 10'000'000'000ull) return absl::StrFormat("%.1f MB", bytes / 1e6);
  return absl::StrFormat("%.1f GB", bytes / 1e9);
}

Json Points(const std::vector<ReportPoint>& points) {
  Json list = Json::array();
  for (const ReportPoint& p : points) {
    // The arithmetic of the page's script would overflow with larger numbers.
    if (std::isfinite(p.x) && std::fabs(p.y) < 1e300) list.push_back({p.x, p.y});
  }
  return list;
}

// Returns the metrics with a curve and a column: those that the job asked for or that were
// measured. For a job without metrics the test loss is shown.
std::vector<std::string> MetricsShown(const ReportData& data) {
  std::vector<std::string> names = data.metric_names;
  std::set<std::string> others;
  bool loss = false;
  for (const ReportEpoch& e : data.epochs) {
    loss = loss || std::isfinite(e.eval_loss);
    for (const auto& [name, value] : e.metrics) others.insert(name);
  }
  for (const std::string& name : others) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  if (names.empty() && loss) names.emplace_back("loss");
  return names;
}

Json CurveOf(const std::vector<ReportEpoch>& epochs, const std::string& name) {
  std::vector<ReportPoint> points;
  for (const ReportEpoch& e : epochs) {
    const auto found = e.metrics.find(name);
    const double value = name == "loss"             ? e.eval_loss
                         : found == e.metrics.end() ? std::nan("")
                                                    : found->second;
    points.push_back({static_cast<double>(e.epoch), value});
  }
  return Points(points);
}

void Tile(std::string* page, absl::string_view label, const std::string& value) {
  absl::StrAppend(page, "<div class=tile><div class=value>", value, "</div><div class=label>",
                  label, "</div></div>\n");
}

constexpr char kHead[] = R"html(<style>
:root{--ink:#1d2430;--soft:#687385;--line:#e3e7ee;--paper:#fff;--back:#f5f7fa;--a:#2f6fde;--b:#d9822b;--good:#21845a;--bad:#c23b3b}
@media(prefers-color-scheme:dark){:root{--ink:#e6eaf1;--soft:#97a3b6;--line:#2c3542;--paper:#1a212b;--back:#12171e;--a:#6ea3ff;--b:#f0a45a;--good:#55c795;--bad:#ee7b7b}}
*{box-sizing:border-box}body{margin:0;background:var(--back);color:var(--ink);font:15px/1.5 system-ui,"Segoe UI",Roboto,sans-serif}
main{max-width:1120px;margin:0 auto;padding:28px 20px 60px}h1{font-size:26px;margin:0 0 2px}h2{font-size:16px;margin:0 0 10px}
.sub{color:var(--soft);margin-bottom:18px}.state{display:inline-block;padding:1px 10px;border-radius:99px;font-size:13px;font-weight:600;color:#fff;background:var(--soft);vertical-align:4px;margin-left:8px}
.state.SUCCEEDED{background:var(--good)}.state.FAILED{background:var(--bad)}
.cause{border-left:4px solid var(--bad);background:var(--paper);padding:10px 14px;margin:0 0 18px;white-space:pre-wrap;overflow-wrap:anywhere}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(150px,1fr));gap:12px;margin-bottom:16px}
.tile,.card{background:var(--paper);border:1px solid var(--line);border-radius:10px}.tile{padding:12px 14px}.value{font-size:22px;font-weight:650;font-variant-numeric:tabular-nums}.label{color:var(--soft);font-size:13px}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(440px,1fr));gap:16px}.card{padding:14px 16px;margin-bottom:16px;min-width:0}.cards .card{margin:0}
@media(max-width:520px){.cards{grid-template-columns:1fr}}
svg{display:block;width:100%;height:auto}svg text{fill:var(--soft);font-size:11px;font-family:inherit}.grid{stroke:var(--line);stroke-width:1}.curve{fill:none;stroke-width:1.8;stroke-linejoin:round}
.raw{opacity:.28;stroke-width:1}.hover{stroke:var(--soft);stroke-dasharray:3 3}.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}th{text-align:left;color:var(--soft);font-weight:600;font-size:13px}th,td{padding:5px 10px 5px 0;border-bottom:1px solid var(--line);vertical-align:top}td.n,th.n{text-align:right}tr:last-child td{border-bottom:0}
.k{color:var(--soft);white-space:nowrap}.event-death{color:var(--bad)}.event-rollback,.event-requeue,.event-warning{color:var(--b)}details summary{cursor:pointer;color:var(--soft)}pre{overflow:auto;font:12.5px/1.45 ui-monospace,Menlo,Consolas,monospace}
.bar{fill:var(--a)}.none{color:var(--soft);padding:30px 0;text-align:center}
</style>
)html";

// The reader's browser draws the charts as inline SVG from the JSON in the page. Nothing is
// fetched.
constexpr char kScript[] = R"html(<script>
"use strict";
const data=JSON.parse(document.getElementById("data").textContent);
const css=n=>getComputedStyle(document.documentElement).getPropertyValue(n);
const short=v=>{const a=Math.abs(v);if(a>=1e12)return v.toExponential(1);if(a>=1e9)return(v/1e9).toPrecision(3)+"G";if(a>=1e6)return(v/1e6).toPrecision(3)+"M";if(a>=1e4)return(v/1e3).toPrecision(3)+"k";if(a>=100)return v.toFixed(0);if(a===0)return"0";return(+v.toPrecision(3)).toString()};
function ticks(lo,hi,n){const span=hi-lo||1,raw=span/n,p=Math.pow(10,Math.floor(Math.log10(raw))),m=raw/p,s=(m<1.5?1:m<3.5?2:m<7.5?5:10)*p,t=[];for(let v=Math.ceil(lo/s)*s;v<=hi+s*1e-9;v+=s)t.push(v);return t}
function smooth(points,n){if(points.length<8)return null;const a=1/Math.max(2,n),out=[];let m=points[0][1];for(const[x,y]of points){m+=a*(y-m);out.push([x,m])}return out}
function chart(id,series,o){
 const at=document.getElementById(id),all=series.flatMap(s=>s.points);
 if(!all.length){at.innerHTML="<div class=none>no measurements</div>";return}
 const W=520,H=240,L=52,R=14,T=10,B=30;let x0=Math.min(...all.map(p=>p[0])),x1=Math.max(...all.map(p=>p[0])),y0=Math.min(...all.map(p=>p[1])),y1=Math.max(...all.map(p=>p[1]));
 // A loss that has grown to 1e30 is drawn on a logarithmic axis, so that its earlier part is visible.
 const log=o.log&&y0>0&&y1>1e3&&y1/y0>1e4,F=log?Math.log10:v=>v,label=v=>short(log?Math.pow(10,v):v);y0=F(y0);y1=F(y1);
 if(o.zero)y0=Math.min(0,y0);if(x0===x1){x0-=.5;x1+=.5}if(y0===y1){y0-=Math.abs(y0)*.05||.5;y1+=Math.abs(y1)*.05||.5}
 const X=x=>L+(x-x0)/(x1-x0)*(W-L-R),Y0=y=>H-B-(y-y0)/(y1-y0)*(H-T-B),Y=y=>Y0(F(y));let g="";
 for(const v of ticks(y0,y1,5))g+=`<line class=grid x1=${L} x2=${W-R} y1=${Y0(v)} y2=${Y0(v)}></line><text class=ytick x=${L-7} y=${Y0(v)+4} text-anchor=end>${label(v)}</text>`;
 for(const v of ticks(x0,x1,6))g+=`<text x=${X(v)} y=${H-B+16} text-anchor=middle>${short(v)}</text>`;
 g+=`<text x=${W-R} y=${H-3} text-anchor=end>${o.x}</text>`;
 for(const s of series){const d=s.points.map((p,i)=>(i?"L":"M")+X(p[0]).toFixed(1)+" "+Y(p[1]).toFixed(1)).join("");
  g+=`<path class="curve ${s.raw?"raw":""}" stroke="${css(s.color)}" d="${d}"></path>`;
  if(s.points.length<=40&&!s.raw)for(const p of s.points)g+=`<circle cx=${X(p[0])} cy=${Y(p[1])} r=3 fill="${css(s.color)}"></circle>`}
 at.innerHTML=`<svg viewBox="0 0 ${W} ${H}" role=img>${g}<line class=hover y1=${T} y2=${H-B} visibility=hidden></line><text class=tip y=${T+8} visibility=hidden></text></svg>`;
 const svg=at.firstChild,line=svg.querySelector(".hover"),tip=svg.querySelector(".tip"),main=series.filter(s=>!s.raw);
 svg.onmousemove=e=>{const b=svg.getBoundingClientRect(),x=x0+((e.clientX-b.left)/b.width*W-L)/(W-L-R)*(x1-x0);let near=null;
  for(const s of main)for(const p of s.points)if(!near||Math.abs(p[0]-x)<Math.abs(near[0]-x))near=p;
  const t=main.map(s=>{let q=null;for(const p of s.points)if(!q||Math.abs(p[0]-near[0])<Math.abs(q[0]-near[0]))q=p;return(s.name?s.name+" ":"")+(+q[1].toPrecision(4))}).join("   ");
  line.setAttribute("x1",X(near[0]));line.setAttribute("x2",X(near[0]));tip.setAttribute("x",X(near[0])<W/2?X(near[0])+6:X(near[0])-6);tip.setAttribute("text-anchor",X(near[0])<W/2?"start":"end");tip.textContent=o.x+" "+short(near[0])+":  "+t;
  line.setAttribute("visibility","visible");tip.setAttribute("visibility","visible")};
 svg.onmouseleave=()=>{line.setAttribute("visibility","hidden");tip.setAttribute("visibility","hidden")}}
function bars(id,rows){const at=document.getElementById(id);if(!rows.length){at.innerHTML="<div class=none>no workers</div>";return}
 const W=520,h=26,L=110,R=70,H=rows.length*h+6,max=Math.max(...rows.map(r=>r[1]),1),box=document.createElement("div");let g="";
 rows.forEach((r,i)=>{g+=`<rect class=bar rx=3 x=${L} y=${i*h+5} width=${Math.max(1,r[1]/max*(W-L-R))} height=${h-10}></rect><text class=who x=${L-8} y=${i*h+18} text-anchor=end></text><text x=${L+r[1]/max*(W-L-R)+6} y=${i*h+18}>${r[1].toLocaleString()}</text>`});
 box.innerHTML=`<svg viewBox="0 0 ${W} ${H}" role=img>${g}</svg>`;box.querySelectorAll(".who").forEach((t,i)=>{t.textContent=rows[i][0]});at.replaceChildren(box)}
const fine=smooth(data.loss_by_step,data.loss_by_step.length/40);
chart("loss",fine?[{points:data.loss_by_step,color:"--a",raw:true},{points:fine,color:"--a"}]:[{points:data.loss_by_step,color:"--a"}],{x:"step",log:true});
data.metrics_by_epoch.forEach((m,i)=>chart("metric-"+i,[{points:m.points,color:"--good"}],{x:"epoch"}));
chart("rate",[{points:data.rate_by_time,color:"--b"}],{x:"seconds",zero:true});
bars("workers",data.steps_by_worker);
</script>
)html";

}  // namespace

std::string RenderReport(const ReportData& data) {
  Json embedded;
  embedded["name"] = data.name;
  embedded["job_uid"] = data.job_uid;
  embedded["state"] = data.state;
  embedded["loss_by_step"] = Points(data.loss_by_step);
  embedded["rate_by_time"] = Points(data.rate_by_time);
  const std::vector<std::string> metrics = MetricsShown(data);
  embedded["metrics_by_epoch"] = Json::array();
  for (const std::string& name : metrics)
    embedded["metrics_by_epoch"].push_back(
        {{"name", name}, {"points", CurveOf(data.epochs, name)}});
  embedded["steps_by_worker"] = Json::array();
  for (const ReportTask& t : data.workers) embedded["steps_by_worker"].push_back({t.name, t.steps});

  std::string page =
      "<!doctype html>\n<html lang=en>\n<head>\n<meta charset=utf-8>\n<meta name=viewport "
      "content=\"width=device-width,initial-scale=1\">\n";
  absl::StrAppend(&page, "<title>", Escape(data.name), " · ", Escape(data.state), "</title>\n",
                  kHead, "</head>\n<body>\n<main>\n");
  absl::StrAppend(&page, "<h1>", Escape(data.name), "<span class=\"state ", Escape(data.state),
                  "\">", Escape(data.state), "</span></h1>\n");
  absl::StrAppend(&page, "<div class=sub>job ", Escape(data.job_uid), " · submitted ",
                  Escape(data.submitted), " · ran ", Number(data.seconds, 1), " s</div>\n");
  if (!data.first_cause.empty())
    absl::StrAppend(&page, "<div class=cause>", Escape(data.first_cause), "</div>\n");

  page += "<div class=tiles>\n";
  for (const std::string& name : MetricsInOrder(data.metric_names, data.metrics)) {
    const double value = data.metrics.at(name);
    if (std::isfinite(value))
      Tile(&page, absl::StrCat("test ", Escape(MetricTitle(name))), MetricValue(name, value));
  }
  Tile(&page, "examples per second",
       data.examples_per_second > 0 && data.examples_per_second < 1e18
           ? Grouped(static_cast<std::uint64_t>(data.examples_per_second))
           : "–");
  Tile(&page, "steps", Grouped(data.steps));
  Tile(&page, "closures",
       absl::StrCat(Grouped(data.closures_succeeded),
                    data.closures_failed + data.closures_cancelled == 0
                        ? ""
                        : absl::StrCat(" <small>+ ", data.closures_failed, " failed, ",
                                       data.closures_cancelled, " cancelled</small>")));
  Tile(&page, "attempts", Grouped(data.attempts));
  Tile(&page, "deaths", Grouped(data.deaths));
  Tile(&page, "closures re-run for lost shards", Grouped(data.reruns));
  Tile(&page, "duplicates refused", Grouped(data.duplicates_refused));
  page += "</div>\n<div class=cards>\n";
  page += "<section class=card><h2>Training loss per step</h2><div id=loss></div></section>\n";
  for (std::size_t i = 0; i < metrics.size(); ++i)
    absl::StrAppend(&page, "<section class=card><h2>Test ", Escape(MetricTitle(metrics[i])),
                    " per epoch</h2><div id=metric-", i, "></div></section>\n");
  page += "<section class=card><h2>Examples per second</h2><div id=rate></div></section>\n";
  page +=
      "<section class=card><h2>Steps per worker</h2><div "
      "id=workers></div></section>\n</div>\n<p></p>\n";

  if (!data.epochs.empty()) {
    page +=
        "<section class=card><h2>Epochs</h2><div class=wide><table><tr><th>epoch<th "
        "class=n>steps<th class=n>training loss<th class=n>test loss";
    std::vector<std::string> columns = metrics;
    columns.erase(std::remove(columns.begin(), columns.end(), "loss"), columns.end());
    for (const std::string& name : columns)
      absl::StrAppend(&page, "<th class=n>test ", Escape(MetricTitle(name)));
    page += "<th class=n>seconds<th class=n>examples/s</tr>\n";
    for (const ReportEpoch& e : data.epochs) {
      absl::StrAppend(&page, "<tr><td>", e.epoch, "<td class=n>", Grouped(e.steps), "<td class=n>",
                      Number(e.train_loss, 4), "<td class=n>", Number(e.eval_loss, 4));
      for (const std::string& name : columns) {
        const auto found = e.metrics.find(name);
        absl::StrAppend(&page, "<td class=n>",
                        found == e.metrics.end() ? "–" : MetricValue(name, found->second));
      }
      absl::StrAppend(&page, "<td class=n>", Number(e.seconds, e.seconds < 1 ? 3 : 1),
                      "<td class=n>", Number(e.examples_per_second, 0), "</tr>\n");
    }
    page += "</table></div></section>\n";
  }

  page += "<section class=card><h2>Events</h2><div class=wide><table>\n";
  if (data.events.empty()) page += "<tr><td class=k>nothing\n";
  for (const ReportEvent& e : data.events) {
    absl::StrAppend(&page, "<tr><td class=k>", Number(e.seconds, 2), " s<td class=\"k event-",
                    Escape(e.kind), "\">", Escape(e.kind), "<td>", Escape(e.text), "</tr>\n");
  }
  page += "</table></div></section>\n";

  page +=
      "<section class=card><h2>Shards</h2><div class=wide><table><tr><th>shard<th>variable<th "
      "class=n>rows<th class=n>size<th>server<th "
      "class=n>updates applied</tr>\n";
  for (const ReportShard& s : data.shards) {
    absl::StrAppend(&page, "<tr><td>", s.shard, "<td>", Escape(s.variable), "<td class=n>",
                    Grouped(s.rows), "<td class=n>", Bytes(s.bytes), "<td>", Escape(s.server),
                    "<td class=n>", Grouped(s.updates_applied), "</tr>\n");
  }
  page += "</table></div></section>\n";

  if (!data.workers.empty() || !data.servers.empty()) {
    page +=
        "<section class=card><h2>Tasks</h2><div class=wide><table><tr><th>task<th class=n>steps<th "
        "class=n>sent and received</tr>\n";
    for (const auto* tasks : {&data.workers, &data.servers}) {
      for (const ReportTask& t : *tasks)
        absl::StrAppend(&page, "<tr><td>", Escape(t.name), "<td class=n>", Grouped(t.steps),
                        "<td class=n>", Bytes(t.bytes), "</tr>\n");
    }
    page += "</table></div></section>\n";
  }
  if (!data.model_summary.empty())
    absl::StrAppend(&page, "<section class=card><h2>Model</h2><pre>", Escape(data.model_summary),
                    "</pre></section>\n");
  if (!data.yaml.empty())
    absl::StrAppend(&page,
                    "<section class=card><details><summary>the job as it ran (YAML)</summary><pre>",
                    Escape(data.yaml), "</pre></details></section>\n");

  // The data block never contains "<", so no text can end it.
  absl::StrAppend(&page, "</main>\n<script type=\"application/json\" id=data>",
                  absl::StrReplaceAll(embedded.dump(-1, ' ', false, Json::error_handler_t::replace),
                                      {{"<", "\\u003c"}}),
                  "</script>\n", kScript, "</body>\n</html>\n");
  return page;
}

}  // namespace evergrad::coordinator
