package traffic

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"sort"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/port/pcap"
)

func text(s string) Opener {
	return func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(s)), nil }
}

func openText(t *testing.T, s string) Source {
	t.Helper()
	src, err := Open("t.csv", text(s), ByIP)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

func measure(t *testing.T, src Source, interval clock.Duration) *Stats {
	t.Helper()
	m, err := NewMeter(src, interval)
	if err != nil {
		t.Fatal(err)
	}
	if err := src.Each(m.Add); err != nil {
		t.Fatal(err)
	}
	s, err := m.Stats()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// load adds an endpoint's bytes to into, an element for each interval.
func load(f *Facebook, endpoint int, into []float64) {
	f.Each(0, endpoint, func(i int, bytes float64) { into[i] += bytes })
}

// Means and medians of the published distributions, by their closed forms.
func TestDistributions(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const n = 1 << 20
	var keys, values, gaps, requests []float64
	for range n {
		keys = append(keys, KeySize.Draw(r))
		values = append(values, ValueSize.Draw(r))
		gaps = append(gaps, Gap.Draw(r))
		requests = append(requests, requestBytes(r))
	}
	for _, c := range []struct {
		name         string
		v            []float64
		mean, median float64
	}{
		{"key", keys, 30.7984 + 8.20449*(math.Gamma(1-0.078688)-1)/0.078688, 30.7984 + 8.20449*(math.Pow(math.Ln2, -0.078688)-1)/0.078688},
		{"value", values, 214.476 / (1 - 0.348238), 214.476 * (math.Pow(2, 0.348238) - 1) / 0.348238},
		{"gap", gaps, 16.0292 / (1 - 0.154971), 16.0292 * (math.Pow(2, 0.154971) - 1) / 0.154971},
		{"request", requests, requestMean, 0},
	} {
		sum := 0.0
		for _, x := range c.v {
			sum += x
		}
		sort.Float64s(c.v)
		if mean := sum / n; math.Abs(mean/c.mean-1) > 0.01 {
			t.Errorf("%s: mean %v, want %v", c.name, mean, c.mean)
		}
		if median := c.v[n/2]; c.median > 0 && math.Abs(median/c.median-1) > 0.01 {
			t.Errorf("%s: median %v, want %v", c.name, median, c.median)
		}
	}
}

// A load has the calm, the share of bursts and the rate that were asked for,
// whatever the correlation; and is the same for the same seed.
func TestFacebookMeans(t *testing.T) {
	for _, f := range []Facebook{
		{Calm: 1e6, Line: 1e8, Share: 0.05, Length: 20 * time.Millisecond},
		{Calm: 0, Line: 1e8, Share: 0.2, Length: 3 * time.Millisecond, Correlation: 0.5},
		{Calm: 2e4, Line: 1e8, Share: 0.02, Length: 5 * time.Millisecond, Correlation: 1},
		{Line: 1e8, Share: 0.3, Length: 5 * time.Millisecond, Correlation: -1},
		{Line: 1e8, Share: 0.02, Length: 5 * time.Millisecond, Correlation: -0.5},
		{Calm: -1},
	} {
		f.Endpoints, f.Interval, f.Intervals, f.Seed = 40, time.Millisecond, 20000, 3
		if err := f.Check(); err != nil {
			t.Fatal(err)
		}
		sum, busy := 0.0, 0
		last := -1
		for e := range f.Endpoints {
			last = -1
			f.Each(e, e, func(i int, b float64) { // racks burst apart
				if i <= last || i >= f.Intervals || b <= 0 {
					t.Fatalf("interval %d after %d, %v bytes", i, last, b)
				}
				last, sum, busy = i, sum+b, busy+1
			})
		}
		calm := f.Calm
		if calm < 0 {
			calm = 1e6 / Gap.Mean() * requestMean
		}
		got, want := sum/(float64(f.Endpoints)*float64(f.Intervals)*1e-3), calm+f.Share*f.Line
		// Bursts of two rows that overlap are one; values have a heavy tail.
		if math.Abs(got/want-1) > 0.1 {
			t.Errorf("%+v: %v bytes/s, want %v", f, got, want)
		}
		a, b := make([]float64, f.Intervals), make([]float64, f.Intervals)
		load(&f, 1, a)
		load(&f, 1, b)
		for i := range a {
			if a[i] != b[i] {
				t.Fatal("the same endpoint differs")
			}
		}
	}
}

// The more endpoints burst together, the higher the peak of their sum, and the
// more of the time many spike together.
func TestCorrelation(t *testing.T) {
	var last float64
	for i, c := range []float64{0, 0.5, 1} {
		f := &Facebook{Endpoints: 16, Interval: time.Millisecond, Intervals: 20000, Line: 1e9, Share: 0.03, Length: 10 * time.Millisecond, Correlation: c, Seed: 5}
		src, err := f.Source()
		if err != nil {
			t.Fatal(err)
		}
		s := measure(t, src, f.Interval)
		if s.Intervals != 20000 || len(s.Endpoints) != 16 {
			t.Fatalf("%d intervals, %d endpoints", s.Intervals, len(s.Endpoints))
		}
		peak := s.PeakOfSum(1) / s.SumOfPeaks(1)
		if peak > 1+1e-9 || i > 0 && peak < last {
			t.Errorf("correlation %v: %v of the sum of peaks, %v before", c, peak, last)
		}
		last = peak
		k := NewSpikes(s, 2)
		if err := src.Each(k.Add); err != nil {
			t.Fatal(err)
		}
		sum := 0.0
		shares := k.Shares()
		for _, v := range shares {
			sum += v
		}
		if math.Abs(sum-1) > 1e-9 {
			t.Errorf("shares add up to %v", sum)
		}
		if c == 1 && len(shares) != 17 {
			t.Errorf("at most %d of 16 spike together", len(shares)-1)
		}
	}
	if last < 0.999 {
		t.Errorf("together, and yet only %v of the sum of peaks", last)
	}
}

// Who takes turns is never alone in silence: as many burst as their share, and
// one more or less.
func TestTurns(t *testing.T) {
	f := &Facebook{Endpoints: 4, Interval: time.Millisecond, Intervals: 20000, Line: 1e3, Share: 0.4, Length: 50 * time.Millisecond, Correlation: -1, Seed: 5}
	sum := make([]float64, f.Intervals)
	for e := range f.Endpoints {
		load(f, e, sum)
	}
	for i, b := range sum {
		if b < 1-1e-9 || b > 2+1e-9 {
			t.Fatalf("%v endpoints burst in interval %d", b, i)
		}
	}
}

func TestFacebookCheck(t *testing.T) {
	good := Facebook{Endpoints: 2, Interval: time.Second, Intervals: 10, Line: 1, Share: 0.1, Length: time.Second}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Facebook){
		"endpoints": func(f *Facebook) { f.Endpoints = 0 }, "racks": func(f *Facebook) { f.Racks = -1 },
		"interval": func(f *Facebook) { f.Interval = 0 }, "intervals": func(f *Facebook) { f.Intervals = 0 },
		"rates": func(f *Facebook) { f.Line = math.NaN() }, "share": func(f *Facebook) { f.Share = 1 },
		"length": func(f *Facebook) { f.Length = 0 }, "correlation": func(f *Facebook) { f.Correlation = 2 },
	} {
		f := good
		change(&f)
		if err := f.Check(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	f := good
	f.Endpoints, f.Intervals = 60000, 60000
	if _, err := f.Source(); err == nil || !strings.Contains(err.Error(), "too many") {
		t.Error(err)
	}
}

// However small the share, what is generated ends.
func TestRarest(t *testing.T) {
	for _, correlation := range []float64{0, 0.5, -0.5, -1, 1, math.Nextafter(1, 0), math.Nextafter(-1, 0)} {
		for _, share := range []float64{5e-324, 1e-300, 1e-200, rarest, 1e-6} {
			f := Facebook{Endpoints: 3, Interval: 10 * time.Millisecond, Intervals: 100, Line: 1e9, Share: share,
				Length: 30 * time.Millisecond, Correlation: correlation, Seed: 1}
			for e := range f.Endpoints {
				f.Each(0, e, func(i int, bytes float64) {
					if !(bytes > 0 && bytes <= 1e7*(1+1e-9)) {
						t.Errorf("share %v, correlation %v: %v bytes", share, correlation, bytes)
					}
				})
			}
		}
	}
}

func TestCSV(t *testing.T) {
	src := openText(t, "\xef\xbb\xbftime,endpoint,bytes\r\n# all of rack r\n\n10.000000001,a,100,r\r\n10.5, \"b\" , 50 ,r\n9.9,a,1,r\n1.11e1,a,7.5\n12,a,0")
	var got []string
	if err := src.Each(func(e Event) error {
		w := src.Endpoints()[e.Endpoint]
		got = append(got, fmt.Sprintf("%d %s/%s %v", e.Time, w.Rack, w.Name, e.Bytes))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	want := "10000000001 r/a 100; 10500000000 r/b 50; 9900000000 r/a 1; 11100000000 /a 7.5; 12000000000 /a 0"
	if s := strings.Join(got, "; "); s != want {
		t.Errorf("%s\nwant %s", s, want)
	}
	s := measure(t, src, time.Second) // once more, and an endpoint of two racks is two
	if s.Intervals != 2 || s.Late != 1 || s.Total.Bytes != 158.5 || len(s.Racks) != 2 || s.PeakOfSum(1) != 151 || s.SumOfPeaks(1) != 158.5 {
		t.Errorf("%+v", s)
	}
}

func TestCSVErrors(t *testing.T) {
	for in, want := range map[string]string{
		"":                                    "t.csv is empty",
		"# nothing\n":                         "t.csv has no events",
		"time,endpoint,bytes\n":               "t.csv has no events",
		"1,a,5\n2,a\n":                        "t.csv line 2: 2 fields",
		"1,a,5\n\n2,a,5,r,x\n":                "t.csv line 3: 5 fields",
		"1,a,5\nx,a,5\n":                      `t.csv line 2: "x" is no time`,
		"1,a,five":                            `t.csv line 1: "five" is no number of bytes`,
		"1,a,-5":                              `"-5" is no number of bytes`,
		"1,a,Inf":                             `"Inf" is no number of bytes`,
		"1,,5":                                "no name of an endpoint",
		"1,a,1\n5,a,1\n3,a,1\n":               "t.csv line 3: times must ascend: 3.000000 s is after 5.000000 s",
		"1700000000000000000,a,5":             "time 1700000000000000000 is out of range: seconds are wanted",
		"1e300,a,5":                           "out of range",
		"1,a,5\n" + strings.Repeat("x", 5000): "t.csv line 2: longer than 4096 bytes",
		"h,e,b\nh,e,b\n":                      `line 2: "h" is no time`,
	} {
		src, err := Open("t.csv", text(in), ByIP)
		if err == nil {
			var m *Meter
			if m, err = NewMeter(src, time.Second); err == nil {
				err = src.Each(m.Add)
			}
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %s", in, err, want)
		}
	}
}

// frame is an Ethernet frame from a source, with an IPv4 packet from 10.0.0.n
// if n > 0.
func frame(mac, n byte, size int) []byte {
	b := make([]byte, size)
	b[6], b[11] = 2, mac
	b[12], b[13] = 0x88, 0xB5
	if n > 0 {
		b[12], b[13] = 8, 0
		b[14] = 0x45
		b[16], b[17] = byte(size-14>>8), byte(size-14)
		copy(b[26:], []byte{10, 0, 0, n})
	}
	return b
}

func captureOf(t *testing.T, format pcap.Format, link uint16) []byte {
	t.Helper()
	var out bytes.Buffer
	h := pcap.NewHeader(format)
	h.Link = uint32(link)
	w, err := pcap.NewWriter(&out, h)
	if err != nil {
		t.Fatal(err)
	}
	if format == pcap.NG {
		if _, err := w.AddInterface(pcap.Interface{Link: link, Resol: 9}); err != nil {
			t.Fatal(err)
		}
	}
	for i, f := range [][]byte{frame(1, 1, 100), frame(1, 2, 200), frame(2, 1, 60), frame(3, 0, 60)} {
		p := pcap.Packet{Time: clock.Time(i) * 1e6, OrigLen: uint32(len(f)), Data: f[:min(len(f), 40)]}
		if err := w.Write(&p); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// Bytes of a capture are those on the wire, though frames were cut off.
func TestCapture(t *testing.T) {
	for _, format := range []pcap.Format{pcap.Classic, pcap.NG} {
		file := captureOf(t, format, pcap.LinkEthernet)
		for by, want := range map[By]string{
			ByIP:  "10.0.0.1 160, 10.0.0.2 200, 02:00:00:00:00:03 60",
			ByMAC: "02:00:00:00:00:01 300, 02:00:00:00:00:02 60, 02:00:00:00:00:03 60",
		} {
			src, err := Open("t.pcap", text(string(file)), by)
			if err != nil {
				t.Fatal(err)
			}
			s := measure(t, src, time.Millisecond)
			var got []string
			for i, e := range src.Endpoints() {
				got = append(got, fmt.Sprintf("%s %v", e.Name, s.Endpoints[i].Bytes))
			}
			if g := strings.Join(got, ", "); g != want || s.Intervals != 4 || s.Total.Bytes != 420 {
				t.Errorf("%v: %s, %d intervals", format, g, s.Intervals)
			}
		}
		src, _ := Open("t.pcap", text(string(file[:len(file)-3])), ByIP)
		if err := src.Each(func(Event) error { return nil }); !errors.Is(err, pcap.ErrTruncated) || !strings.HasPrefix(err.Error(), "t.pcap: ") {
			t.Errorf("cut off: %v", err)
		}
	}
	src, _ := Open("t.pcap", text(string(captureOf(t, pcap.Classic, 113))), ByIP)
	if err := src.Each(func(Event) error { return nil }); err == nil || !strings.Contains(err.Error(), "link type 113") {
		t.Error(err)
	}
}

// What a Meter and Spikes say is what a table of all intervals says.
func TestMeterModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const interval = 10
		n := rapid.IntRange(1, 60).Draw(t, "events")
		var events []Event
		at := clock.Time(rapid.Int64Range(-100, 100).Draw(t, "start"))
		for range n {
			at += clock.Time(rapid.SampledFrom([]int64{0, 0, 1, 3, 9, 10, 11, 35, 400}).Draw(t, "gap"))
			events = append(events, Event{at, rapid.IntRange(0, 4).Draw(t, "endpoint"), float64(rapid.IntRange(0, 1000).Draw(t, "bytes"))})
		}
		src := &fixed{events: events}
		for i := range 5 {
			src.who = append(src.who, Endpoint{Name: fmt.Sprint(i), Rack: fmt.Sprint(i / 2)})
		}
		m, _ := NewMeter(src, interval)
		var closed int64
		closedBytes := 0.0
		m.Closed = func(racks []float64, n int64) {
			closed += n
			for _, b := range racks {
				closedBytes += b * float64(n)
			}
		}
		if err := src.Each(m.Add); err != nil {
			t.Fatal(err)
		}
		table := map[int64]*[5]float64{}
		last, all := int64(0), 0.0
		for _, e := range events {
			i := int64(e.Time-events[0].Time) / interval
			if table[i] == nil {
				table[i] = new([5]float64)
			}
			table[i][e.Endpoint] += e.Bytes
			all += e.Bytes
			last = i
		}
		s, err := m.Stats()
		if all == 0 {
			if err == nil {
				t.Fatal("a trace without bytes")
			}
			return
		}
		if err != nil || s.Intervals != last+1 || closed != last+1 || closedBytes != all || s.Total.Bytes != all {
			t.Fatalf("%v; %d intervals of %d, %d closed, %v bytes of %v", err, s.Intervals, last+1, closed, s.Total.Bytes, all)
		}
		column := func(of func(*[5]float64) float64) []float64 {
			v := make([]float64, last+1)
			for i, row := range table {
				v[i] = of(row)
			}
			sort.Float64s(v)
			return v
		}
		check := func(name string, got *Series, of func(*[5]float64) float64) {
			v := column(of)
			if got.Peak != v[last] {
				t.Fatalf("%s: peak %v, want %v", name, got.Peak, v[last])
			}
			for _, q := range []float64{0.5, 0.9, 0.99} {
				over := int(math.Floor(float64(last+1) * (1 - q) * (1 + 1e-12)))
				want := v[int(last)-over]
				if g := got.Quantile(q, s.Intervals); g < want || g > want*(1+1.0/64)+1e-9 {
					t.Fatalf("%s: quantile %v is %v, want %v", name, q, g, want)
				}
			}
		}
		check("total", &s.Total, func(r *[5]float64) float64 { return r[0] + r[1] + r[2] + r[3] + r[4] })
		for e := range s.Endpoints {
			check("endpoint", &s.Endpoints[e], func(r *[5]float64) float64 { return r[e] })
		}
		if s.PeakOfSum(1) > s.RackPeaks(1)+1e-9 || s.RackPeaks(1) > s.SumOfPeaks(1)+1e-9 {
			t.Fatalf("peaks %v, %v, %v", s.PeakOfSum(1), s.RackPeaks(1), s.SumOfPeaks(1))
		}

		k := NewSpikes(s, 1)
		if err := src.Each(k.Add); err != nil {
			t.Fatal(err)
		}
		var limit [5]float64
		for e := range s.Endpoints {
			sum, sum2 := 0.0, 0.0
			for _, row := range table {
				sum, sum2 = sum+row[e], sum2+row[e]*row[e]
			}
			mean := sum / float64(last+1)
			deviation := math.Sqrt(math.Max(sum2/float64(last+1)-mean*mean, 0))
			limit[e] = mean + deviation
			if deviation <= mean*1e-9 {
				limit[e] = math.Inf(1)
			}
		}
		want := make([]float64, 6)
		want[0] = 1
		for _, row := range table {
			c := 0
			for e, b := range row {
				if b > 0 && b >= limit[e] {
					c++
				}
			}
			if c > 0 {
				want[c] += 1 / float64(last+1)
				want[0] -= 1 / float64(last+1)
			}
		}
		for i, v := range k.Shares() {
			if math.Abs(v-want[i]) > 1e-9 {
				t.Fatalf("%d spike together %v of the time, want %v", i, v, want[i])
			}
		}
	})
}

type fixed struct {
	events []Event
	who    []Endpoint
}

func (f *fixed) Endpoints() []Endpoint { return f.who }

func (f *fixed) Each(yield func(Event) error) error {
	for _, e := range f.events {
		if err := yield(e); err != nil {
			return err
		}
	}
	return nil
}

// A timeline keeps all bytes, however long it gets.
func TestTimeline(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		tl := Timeline{each: 1}
		sum, peak, count := 0.0, 0.0, int64(0)
		for range rapid.IntRange(1, 30).Draw(t, "parts") {
			v := float64(rapid.IntRange(0, 9).Draw(t, "v"))
			n := rapid.Int64Range(1, 1<<rapid.IntRange(0, 30).Draw(t, "order")).Draw(t, "n")
			tl.add(v, n)
			sum, peak, count = sum+v*float64(n), math.Max(peak, v), count+n
		}
		bins, each := tl.Bins()
		if len(bins) > maxBins || int64(len(bins)) != (count+each-1)/each {
			t.Fatalf("%d bins of %d for %d", len(bins), each, count)
		}
		for _, b := range bins {
			sum -= b.Sum
			if b.Peak > peak {
				t.Fatal("a peak that was not there")
			}
		}
		if sum != 0 {
			t.Fatalf("%v bytes are missing", sum)
		}
	})
}

func TestStep(t *testing.T) {
	for in, want := range map[string]clock.Duration{
		"1,a,1\n2,b,1\n2.5,a,1\n8,b,1\n8.501,a,1\n": 1500 * time.Millisecond,
		"1,a,1\n2,b,1\n3,a,1\n7,b,1\n8,a,1\n":       time.Second,      // lines without bytes left out
		"1,a,1\n2,b,1\n2.5,a,1\n7,b,1\n7.207,a,1\n": time.Millisecond, // as packets come
		"1,a,1\n2,b,1\n": time.Second,
		"1,a,1\n1,a,1\n": 0,
	} {
		if got, err := Step(openText(t, in)); err != nil || got != want {
			t.Errorf("%q: %v, %v", in, got, err)
		}
	}
	if _, err := Step(openText(t, "1,a,1\n2,a\n")); err == nil {
		t.Error("a bad line")
	}
}

// Once all endpoints are known, events cost no memory.
func TestNoAllocation(t *testing.T) {
	src := &fixed{who: []Endpoint{{Name: "a"}, {Name: "b"}}}
	m, _ := NewMeter(src, 10)
	at := clock.Time(0)
	add := func() {
		for i := range 100 {
			at += 7
			if err := m.Add(Event{at, i & 1, float64(1 + i*i)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for range 400 {
		add()
	}
	if n := testing.AllocsPerRun(100, add); n > 0 {
		t.Errorf("%v allocations in 100 events", n)
	}
	// A long trace takes no more memory than a short one: lines are not kept.
	line := "1.5,endpoint-number-one,1500\n"
	src2 := openText(t, strings.Repeat(line, 50000))
	n := testing.AllocsPerRun(2, func() {
		if err := src2.Each(func(Event) error { return nil }); err != nil {
			t.Fatal(err)
		}
	})
	if n > 20 {
		t.Errorf("%v allocations in 50,000 lines", n)
	}
}

// FuzzTrace: any bytes are a trace, or refused in one line.
func FuzzTrace(f *testing.F) {
	f.Add([]byte("time,endpoint,bytes\n1,a,5\n2,b,7,r\n"))
	f.Add([]byte("\xd4\xc3\xb2\xa1"))
	f.Add([]byte("1e9,a,1\n-1e9,b,1"))
	f.Add([]byte(".,a,1\n..,b,1\n1.,c,2"))
	f.Add(captureOf(&testing.T{}, pcap.Classic, pcap.LinkEthernet))
	f.Fuzz(func(t *testing.T, b []byte) {
		src, err := Open("t", text(string(b)), ByIP)
		if err != nil {
			return
		}
		m, _ := NewMeter(src, time.Second)
		if err := src.Each(m.Add); err != nil {
			if strings.ContainsAny(err.Error(), "\n\r") {
				t.Fatalf("%q", err)
			}
			return
		}
		s, err := m.Stats()
		if err != nil {
			return
		}
		if s.PeakOfSum(1) > s.SumOfPeaks(1)*(1+1e-9) || s.PeakOfSum(0.9) > s.PeakOfSum(1) || math.IsNaN(s.PeakOfSum(0.5)) {
			t.Fatalf("%v %v", s.PeakOfSum(1), s.SumOfPeaks(1))
		}
	})
}
