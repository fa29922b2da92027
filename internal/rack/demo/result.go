package demo

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
)

// cloverModes are the phases for Clover in their order: the mode of the middlebox in each of them.
var cloverModes = [...]string{"off", "write", "read-write"}

// titles are the names of the phases for people.
var titles = map[string]string{"off": "pass-through", "write": "write steering", "read-write": "write+read steering", "mux": "shared connections", "replace": "atomics as WRITEs"}

// Micros is a time in microseconds; NaN, in JSON null, if there is none: a mix without writes has no write
// latency.
type Micros float64

// None returns the Micros that stands for no time.
func None() Micros { return Micros(math.NaN()) }

// MarshalJSON implements json.Marshaler.
func (m Micros) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(m)) {
		return []byte("null"), nil
	}
	return json.Marshal(math.Round(float64(m)*1000) / 1000)
}

// UnmarshalJSON implements json.Unmarshaler.
func (m *Micros) UnmarshalJSON(p []byte) error {
	if string(p) == "null" {
		*m = None()
		return nil
	}
	return json.Unmarshal(p, (*float64)(m))
}

func (m Micros) String() string {
	if math.IsNaN(float64(m)) {
		return "-"
	}
	return decimal(float64(m))
}

// decimal formats a number with three significant digits, or with all digits before the point if these are
// more.
func decimal(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100:
		return thousands(v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// thousands formats v without decimals, with commas between groups of three digits.
func thousands(v float64) string {
	s := fmt.Sprintf("%.0f", math.Abs(v))
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	if v < 0 {
		s = "-" + s
	}
	return s
}

// Phase is what was measured in one phase, warm-up excluded.
type Phase struct {
	Name     string  `json:"name"` // the mode of the middlebox
	Seconds  float64 `json:"seconds"`
	Ops      uint64  `json:"ops"`
	Errors   uint64  `json:"errors"` // operations that ended with an error, or with an unknown end
	OpsPerS  float64 `json:"ops_per_s"`
	FirstTry float64 `json:"first_try"` // share of the operations, 0 to 1
	// As the middlebox counted them: frames and bytes that entered the middlebox from either side, per
	// operation that the clients finished.
	PacketsPerOp float64 `json:"packets_per_op"`
	BytesPerOp   float64 `json:"bytes_per_op"`
	ReadP50      Micros  `json:"read_p50_us"`
	ReadP99      Micros  `json:"read_p99_us"`
	ReadP999     Micros  `json:"read_p999_us"`
	WriteP50     Micros  `json:"write_p50_us"`
	WriteP99     Micros  `json:"write_p99_us"`
	WriteP999    Micros  `json:"write_p999_us"`
	Steered      uint64  `json:"steered"` // packets that the middlebox rewrote
	// Moved are operations that went over another client's connection, Replaced atomics that went as WRITEs.
	Moved    uint64 `json:"moved,omitempty"`
	Replaced uint64 `json:"replaced,omitempty"`
	// Missed counts packets that crossed in the kernel although the middlebox wanted them: it was too slow,
	// or away.
	Missed uint64 `json:"missed"`
}

// Integrity is the result of walking every key's chain in the memory node, or, for other stores, of checking
// all that the store holds.
type Integrity struct {
	Keys        uint64 `json:"keys"`
	AckedWrites uint64 `json:"acked_writes"`
	Lost        uint64 `json:"lost"`
	BrokenLinks uint64 `json:"broken_links"`
	// For stores other than Clover: Checked operations have one order that explains all answers and what the
	// memory holds at the end. Wrong says what is wrong with the answers or the memory.
	Checked uint64 `json:"checked,omitempty"`
	Wrong   string `json:"wrong,omitempty"`
	Words   bool   `json:"words,omitempty"` // Keys are words
}

// OK reports whether nothing is lost or wrong.
func (i Integrity) OK() bool { return i.Lost == 0 && i.BrokenLinks == 0 && i.Wrong == "" }

func (i Integrity) String() string {
	if i.Checked > 0 || i.Wrong != "" {
		return i.other()
	}
	walked := fmt.Sprintf("%s keys walked, %s acknowledged writes", thousands(float64(i.Keys)), thousands(float64(i.AckedWrites)))
	if i.OK() {
		return "integrity: OK: " + walked + ", none lost, no broken link"
	}
	return fmt.Sprintf("integrity: FAILED: %s, %s lost, %s broken links", walked, thousands(float64(i.Lost)), thousands(float64(i.BrokenLinks)))
}

// Versions are the versions of the programs of a run.
type Versions struct {
	Quillon string `json:"quillon"`
	Go      string `json:"go"`
	Kernel  string `json:"kernel"`
}

// Machine is the machine of a run.
type Machine struct {
	CPU      string `json:"cpu"`
	Cores    int    `json:"cores"`
	MemoryMB int    `json:"memory_mb"`
	OS       string `json:"os"`
}

// Setting says where and how a demo ran.
type Setting struct {
	Machine  Machine  `json:"machine"`
	Command  []string `json:"command"`
	Versions Versions `json:"versions"`
	Wire     string   `json:"wire"` // what the frames crossed
}

func here() Setting { return Setting{Machine: ThisMachine(), Versions: ThisVersion()} }

// By stores the command line.
func (s *Setting) By(command []string) { s.Command = command }

// Result is the result of a whole run.
type Result struct {
	Setting
	Config    Config    `json:"config"`
	Phases    []Phase   `json:"phases"`
	Integrity Integrity `json:"integrity"`
}

// SaveJSON writes r to a file.
func (r *Result) SaveJSON(name string) error { return saveJSON(name, r) }

// saveJSON writes a result to a file, indented.
func saveJSON(name string, result any) error {
	return writeFile(name, func(w io.Writer) error {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(result)
	})
}

// WriteReport writes what was run, the table and the verdict.
func (r *Result) WriteReport(w io.Writer) error {
	if _, err := fmt.Fprintf(w, "%s\n%s\n\n", r.Config.title(), r.Wire); err != nil {
		return err
	}
	return r.WriteTable(w)
}

func writeFile(name string, write func(io.Writer) error) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	if err := write(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// ratio returns "1.23x", or "" if there is nothing to compare with.
func ratio(v, base float64) string {
	if base == 0 || math.IsNaN(v) || math.IsNaN(base) {
		return ""
	}
	return fmt.Sprintf("%.2fx", v/base)
}

// WriteTable writes the phases side by side, each with its ratio to the first one, and the verdict of
// integrity.
func (r *Result) WriteTable(w io.Writer) error {
	type row struct {
		name   string
		value  func(p *Phase) float64
		format func(v float64) string
		ratio  bool
	}
	rows := []row{
		{"operations/s", func(p *Phase) float64 { return p.OpsPerS }, thousands, true},
		{"first try", func(p *Phase) float64 { return 100 * p.FirstTry }, func(v float64) string { return fmt.Sprintf("%.2f %%", v) }, false},
		{"packets/op", func(p *Phase) float64 { return p.PacketsPerOp }, decimal, true},
		{"bytes/op", func(p *Phase) float64 { return p.BytesPerOp }, decimal, true},
		{"read p50 us", func(p *Phase) float64 { return float64(p.ReadP50) }, micros, true},
		{"read p99 us", func(p *Phase) float64 { return float64(p.ReadP99) }, micros, true},
		{"read p99.9 us", func(p *Phase) float64 { return float64(p.ReadP999) }, micros, true},
		{"write p50 us", func(p *Phase) float64 { return float64(p.WriteP50) }, micros, true},
		{"write p99 us", func(p *Phase) float64 { return float64(p.WriteP99) }, micros, true},
		{"write p99.9 us", func(p *Phase) float64 { return float64(p.WriteP999) }, micros, true},
	}
	if r.Config.Store == cloverName {
		rows = append(rows, row{"steered packets", func(p *Phase) float64 { return float64(p.Steered) }, thousands, false})
	} else {
		rows = append(rows, row{"moved", func(p *Phase) float64 { return float64(p.Moved) }, thousands, false},
			row{"as WRITEs", func(p *Phase) float64 { return float64(p.Replaced) }, thousands, false})
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%-15s", "")
	for i := range r.Phases {
		fmt.Fprintf(&b, " %14s", r.Phases[i].Name)
		if i > 0 {
			fmt.Fprintf(&b, " %8s", "")
		}
	}
	b.WriteByte('\n')
	for _, row := range rows {
		fmt.Fprintf(&b, "%-15s", row.name)
		for i := range r.Phases {
			v := row.value(&r.Phases[i])
			fmt.Fprintf(&b, " %14s", row.format(v))
			if i == 0 {
				continue
			}
			x := ""
			if row.ratio {
				x = ratio(v, row.value(&r.Phases[0]))
			}
			fmt.Fprintf(&b, " %8s", x)
		}
		b.WriteByte('\n')
	}
	for _, p := range r.Phases {
		if p.Missed > 0 {
			fmt.Fprintf(&b, "%s: %s packets went past the middlebox in the kernel\n", p.Name, thousands(float64(p.Missed)))
		}
		if p.Errors > 0 {
			fmt.Fprintf(&b, "%s: %s operations failed\n", p.Name, thousands(float64(p.Errors)))
		}
	}
	fmt.Fprintln(&b, r.Integrity)
	lines := strings.Split(b.String(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	_, err := io.WriteString(w, strings.Join(lines, "\n"))
	return err
}

func micros(v float64) string { return Micros(v).String() }
