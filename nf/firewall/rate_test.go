package firewall

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/gopacket/layers"
	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/table"
)

// TestMeter: what a meter lets through is what a bucket of tokens would, that fills evenly.
func TestMeter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.SampledFrom([]uint64{1, 2, 5, 100, 1000, maxRate}).Draw(t, "rate")
		burst := rapid.SampledFrom([]uint64{1, 2, 7, 1000}).Draw(t, "burst")
		m, now := newMeter(rate, burst), clock.Time(rapid.Int64Range(1, 1<<60).Draw(t, "start"))
		every := int64(time.Second) / int64(rate)
		tokens, last := int64(burst)*every, now // in nanoseconds
		for range rapid.IntRange(1, 200).Draw(t, "n") {
			now = now.Add(time.Duration(rapid.Int64Range(0, 2*every).Draw(t, "later")) * time.Duration(rapid.SampledFrom([]int{0, 0, 1, 5}).Draw(t, "times")))
			tokens = min(int64(burst)*every, tokens+int64(now.Sub(last)))
			last = now
			want := tokens >= every
			if want {
				tokens -= every
			}
			if got := m.take(now); got != want {
				t.Fatalf("%d/s, burst %d: %v, want %v", rate, burst, got, want)
			}
		}
	})
}

// TestMeterOfWorkers: workers together have what one would have.
func TestMeterOfWorkers(t *testing.T) {
	const burst = 5000
	m := newMeter(1, burst)
	var taken atomic.Int64
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range burst {
				if m.take(1) {
					taken.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if taken.Load() != burst {
		t.Errorf("%d were opened of %d", taken.Load(), burst)
	}
}

// TestRate: a rule opens no more connections than its limit, and those that it opened stay, also when other rules change.
func TestRate(t *testing.T) {
	x := graphtest.New(t, *Kind(), graph.Args{"rules": "allow+in:a+proto:udp+rate:10+burst:3;allow+in:b"})
	udp := func(i int) pkt {
		return pkt{in: "a", proto: layers.IPProtocolUDP, sport: uint16(1000 + i), dport: 53}
	}
	open := func(first, want int) {
		t.Helper()
		for i := range want + 2 {
			reason := "opened"
			if i >= want {
				reason = "-rule-rate"
			}
			if got := goes(t, x, udp(first+i)); got != reason {
				t.Errorf("connection %d: %s, want %s", i, got, reason)
			}
		}
	}
	open(0, 3)
	if got := goes(t, x, udp(0)); got != "known" {
		t.Errorf("a packet of a connection that was opened: %s", got)
	}
	x.Advance(100 * time.Millisecond) // one more
	open(10, 1)
	x.Advance(time.Minute)
	open(20, 3)
	if got := goes(t, x, pkt{in: "b", proto: layers.IPProtocolUDP, sport: 7, dport: 8}); got != "opened" {
		t.Errorf("another rule: %s", got)
	}
	// The limit goes on where other rules change, and connections do not count anew.
	if err := x.Set(graph.Args{"rules": "allow+in:a+proto:udp+rate:10+burst:3+prio:20;allow+in:b+dport:9"}); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if got := goes(t, x, udp(20+i)); got != "known" {
			t.Errorf("after a change: %s", got)
		}
	}
	open(30, 0)
	if err := x.Set(graph.Args{"rules": "allow+in:a+proto:udp+rate:10+burst:4+prio:20"}); err != nil {
		t.Fatal(err)
	}
	open(40, 4)
}

// TestRateText: rules with limits are read, refused and written.
func TestRateText(t *testing.T) {
	keys := decl(32).Keys
	for text, want := range map[string]string{
		"allow+rate:100":                       "allow+rate:100+burst:100+prio:10",
		"allow+burst:5+in:a+rate:1+prio:7":     "allow+in:a+rate:1+burst:5+prio:7",
		"allow+rate:1000000+burst:1000000":     "allow+rate:1000000+burst:1000000+prio:10",
		"allow+rate:0":                         "rate:0: want a number of connections from 1 to 1000000",
		"allow+rate:1000001":                   "rate:1000001: want a number of connections",
		"allow+rate:5/s":                       "rate:5/s: want a number",
		"allow+burst:5":                        "burst: without rate",
		"deny+rate:5":                          "rate: a rule that denies has none",
		"allow+rate:5+rate:5":                  "rate is there twice",
		"allow+rate:5+burst:0":                 "burst:0: want a number",
		"allow+in:a+rate:5;allow+in:a+prio:20": "another with the same conditions and priority",
	} {
		rules, err := parseRules(text, keys)
		switch {
		case err != nil && !strings.Contains(err.Error(), want):
			t.Errorf("%s: %v, want %s", text, err, want)
		case err == nil && formatRules(rules, keys) != want:
			t.Errorf("%s: %s, want %s", text, formatRules(rules, keys), want)
		}
	}
	// The table takes what the text does, and no more.
	d := decl(32)
	e, err := d.Parse(table.Text{Action: "limit", Priority: 5, Match: map[string]string{"in": "a"}, Params: map[string]string{"rate": "10", "burst": "20"}})
	if err != nil {
		t.Fatal(err)
	}
	var rows table.Rows
	if err := d.Do(&rows, &table.Change{Op: table.Insert, Entry: e}); err != nil {
		t.Fatal(err)
	}
	out, err := d.Setting.Set(nil, rows)
	if want := "allow+in:a+rate:10+burst:20+prio:5"; err != nil || out["rules"] != want {
		t.Errorf("%v %v, want %s", out, err, want)
	}
	rows.Entries[0].Params[0] = table.Uint(0)
	if _, err := d.Setting.Set(nil, rows); err == nil {
		t.Error("no connection a second is taken")
	}
}
