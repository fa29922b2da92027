package demo

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/quillon/quillon/internal/rack/clio"
	"github.com/quillon/quillon/internal/sim/figure"
	wire "github.com/quillon/quillon/nf/hdr/clio"
)

const wirePort = wire.Port

// ClioResult is the result of a whole run.
type ClioResult struct {
	Setting
	Config   ClioConfig          `json:"config"`
	Variants []ClioVariantResult `json:"variants"`
}

// ClioVariantResult is the result of a variant.
type ClioVariantResult struct {
	Name        string    `json:"name"`
	What        string    `json:"what"`
	Published   string    `json:"published,omitempty"` // series of figures 5.16 to 5.18
	Devices     int       `json:"devices"`
	LoadSeconds float64   `json:"load_seconds"`
	Rows        []ClioRow `json:"workloads"`
	// Checked is the number of operations, of all workloads and warm-ups, that were checked. Wrong says if no
	// order of them explains the answers, or if none was found.
	Checked int    `json:"checked"`
	Wrong   string `json:"wrong,omitempty"`
	// Damaged counts keys whose value on the first device no client wrote, Different values of other devices
	// that differ from it.
	Damaged   int `json:"damaged"`
	Different int `json:"different"`
}

// ClioRow is the result of a workload. Latencies are those of operations that succeeded in the time that was
// measured.
type ClioRow struct {
	Workload string  `json:"workload"`
	Seconds  float64 `json:"seconds"`
	Ops      uint64  `json:"ops"`
	OpsPerS  float64 `json:"ops_per_s"`
	Gbit     float64 `json:"gbit_per_s"` // payload: only values count
	Mean     Micros  `json:"mean_us"`
	P50      Micros  `json:"p50_us"`
	P99      Micros  `json:"p99_us"`
	ReadP50  Micros  `json:"read_p50_us"`
	ReadP99  Micros  `json:"read_p99_us"`
	WriteP50 Micros  `json:"write_p50_us"`
	WriteP99 Micros  `json:"write_p99_us"`
	Hits     float64 `json:"hits"` // share of reads that the cache answered; 0 without a cache
	Again    uint64  `json:"retransmitted"`
	Lost     uint64  `json:"frames_lost"`
	Unknown  uint64  `json:"unknown"` // operations without an answer
	Failed   uint64  `json:"failed"`  // operations that were refused
	Corrupt  uint64  `json:"corrupt"` // reads of values that no client wrote
	// The published values; null: nothing was published.
	PublishedMean Micros `json:"published_mean_us"`
	PublishedGbit Micros `json:"published_gbit_per_s"`
}

// measured computes the row from a meter and counters.
func (r *ClioRow) measured(v *clioVariant, m *clio.Meter, t clioTotals) {
	all := m.All()
	r.Ops = m.Ops()
	r.OpsPerS = float64(r.Ops) / r.Seconds
	r.Gbit = m.Gbit(seconds(r.Seconds))
	r.Mean = Micros(all.Mean() / float64(time.Microsecond))
	at := func(h *hdrhistogram.Histogram, p50, p99 *Micros) { l := latency(h); *p50, *p99 = l.P50, l.P99 }
	at(all, &r.P50, &r.P99)
	at(m.Read, &r.ReadP50, &r.ReadP99)
	at(m.Write, &r.WriteP50, &r.WriteP99)
	if n := t.hits + t.misses; n > 0 {
		r.Hits = float64(t.hits) / float64(n)
	}
	r.Again, r.Lost = t.again, t.lost
	published := func(series string, figures ...string) Micros {
		for _, f := range figures {
			if x, ok := figure.PublishedAt(f, series, r.Workload); ok {
				return Micros(x)
			}
		}
		return None()
	}
	r.PublishedMean, r.PublishedGbit = published(v.published, "5.16", "5.18"), published(v.published, "5.17")
}

// OK reports whether nothing is wrong.
func (v *ClioVariantResult) OK() bool {
	ok := v.Wrong == "" && v.Damaged+v.Different == 0
	for i := range v.Rows {
		r := &v.Rows[i]
		ok = ok && r.Unknown+r.Failed+r.Corrupt == 0
	}
	return ok
}

// OK reports whether nothing is wrong in any variant.
func (r *ClioResult) OK() bool {
	return !slices.ContainsFunc(r.Variants, func(v ClioVariantResult) bool { return !v.OK() })
}

func (v *ClioVariantResult) String() string {
	var wrong []string
	add := func(n int, what string) {
		if n > 0 {
			wrong = append(wrong, thousands(float64(n))+" "+what)
		}
	}
	for i := range v.Rows {
		r := &v.Rows[i]
		add(int(r.Unknown), r.Workload+": operations without an answer")
		add(int(r.Failed), r.Workload+": operations refused")
		add(int(r.Corrupt), r.Workload+": reads of what nobody wrote")
	}
	add(v.Damaged, "keys with a value that nobody wrote")
	add(v.Different, "values that differ from the first device's")
	if v.Wrong != "" {
		wrong = append(wrong, v.Wrong)
	}
	if wrong != nil {
		return v.Name + ": FAILED: " + strings.Join(wrong, "; ")
	}
	alike := ""
	if v.Devices > 1 {
		alike = fmt.Sprintf(", %d copies alike", v.Devices)
	}
	return fmt.Sprintf("%s: OK: %s operations are linearizable%s", v.Name, thousands(float64(v.Checked)), alike)
}

// SaveJSON writes r to a file.
func (r *ClioResult) SaveJSON(name string) error { return saveJSON(name, r) }

// WriteReport writes what was run, the table and the verdicts.
func (r *ClioResult) WriteReport(out io.Writer) error {
	fmt.Fprintf(out, "%s\n%s\n\n", r.Config.title(), r.Wire)
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "variant\tYCSB\top/s\tGbit/s\tmean us\tp50\tp99\thits\tsent again\tlost\t|\tpublished: Gbit/s\tmean us\t")
	for i := range r.Variants {
		v := &r.Variants[i]
		for k := range v.Rows {
			x, name, hits := &v.Rows[k], "", "-"
			if k == 0 {
				name = v.Name
			}
			if x.Hits > 0 {
				hits = fmt.Sprintf("%.0f %%", 100*x.Hits)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%.3f\t%s\t%s\t%s\t%s\t%s\t%s\t|\t%s\t%s\t\n", name, x.Workload, thousands(x.OpsPerS), x.Gbit, x.Mean, x.P50, x.P99,
				hits, thousands(float64(x.Again)), thousands(float64(x.Lost)), x.PublishedGbit, x.PublishedMean)
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	for i := range r.Variants {
		fmt.Fprintln(out, r.Variants[i].String())
	}
	_, err := fmt.Fprintf(out, "\npublished: %s. Here all is software: %d processors are\nclients, board and devices at once, so orders and ratios can be compared, and not microseconds.\n",
		clioPublished, r.Machine.Cores)
	return err
}

// clioPublished says with what the published figures were measured.
const clioPublished = "figures 5.16 to 5.18 of SuperNIC (Shan, UCSD thesis, 2022): FPGAs at 250 MHz as\nboard and devices, a server of its own as client, links of 100 and 10 Gbit/s"
