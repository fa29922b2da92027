package clover

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/table"
)

// rules draws rules over a few keys and servers, so that they overlap.
func rules() *rapid.Generator[[]table.Entry] {
	servers := []string{"10.0.0.1", "10.0.0.2", "10.0.3.1", "fd00::1", "fd00::2"}
	return rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) table.Entry {
		e := table.Entry{Priority: int32(rapid.IntRange(1, 4).Draw(t, "priority")), Key: []table.Cond{{Any: true}, {Any: true}, {Any: true}}}
		e.Action = rapid.IntRange(0, 1).Draw(t, "action")
		if rapid.IntRange(0, 4).Draw(t, "keys") > 0 {
			lo := rapid.SampledFrom([]uint64{0, 1, 5, 6, 19, 1 << 63, ^uint64(0)}).Draw(t, "lo")
			hi := max(lo, rapid.SampledFrom([]uint64{0, 1, 5, 7, 20, 1 << 63, ^uint64(0)}).Draw(t, "hi"))
			if lo != 0 || hi != ^uint64(0) {
				e.Key[1] = table.Cond{V: table.Uint(lo), M: table.Uint(hi)}
			}
		}
		if rapid.IntRange(0, 2).Draw(t, "named") == 0 {
			a := netip.MustParseAddr(rapid.SampledFrom(servers).Draw(t, "server"))
			m := rapid.SampledFrom([]table.Value{table.Ones(a.BitLen()), table.Prefix(8, a.BitLen()), table.Prefix(a.BitLen()-1, a.BitLen()), table.Uint(1)}).Draw(t, "mask")
			at := 0
			if a.Is6() {
				at = 2
			}
			e.Key[at] = table.Cond{V: table.Addr(a).And(m), M: m}
		}
		return e
	}), 0, 12, func(e table.Entry) string { return fmt.Sprint(e.Key, e.Priority) })
}

// What rules say is what the first one by priority says that holds, however
// they are kept; and they survive being written as an argument.
func TestChoice(t *testing.T) {
	d := &tables()[tableKeys]
	rapid.Check(t, func(t *rapid.T) {
		rows := table.Rows{Entries: rules().Draw(t, "rules"), Default: table.Call{Action: rapid.IntRange(0, 1).Draw(t, "rest")}}
		for i := range rows.Entries {
			if err := d.Check(&table.Change{Op: table.Insert, Entry: rows.Entries[i]}); err != nil {
				t.Fatal(err)
			}
		}
		args, err := setKeys(nil, rows)
		if err != nil {
			t.Fatal(err)
		}
		slices.SortStableFunc(rows.Entries, func(a, b table.Entry) int { return int(b.Priority - a.Priority) })
		if d := cmp.Diff(rows, keysOf(args)); d != "" && len(rows.Entries) > 0 {
			t.Fatalf("%s: %s", args["only"], d)
		}
		cfg, err := parseArgs(args)
		if err != nil {
			t.Fatal(err)
		}
		for _, server := range []string{"10.0.0.1", "10.0.0.2", "10.0.3.1", "fd00::1", "fd00::2", "8000::"} {
			a := netip.MustParseAddr(server)
			for _, key := range []uint64{0, 1, 2, 5, 6, 7, 8, 19, 20, 21, 1 << 63, ^uint64(0)} {
				want := rows.Default.Action == actSteer
				for _, e := range rows.Entries {
					in := e.Key[1].Any || key >= e.Key[1].V.Lo && key <= e.Key[1].M.Lo
					for at, bits := range map[int]int{0: 32, 2: 128} {
						if c := e.Key[at]; !c.Any {
							in = in && a.BitLen() == bits && table.Addr(a).And(c.M) == c.V
						}
					}
					if in {
						want = e.Action == actSteer
						break
					}
				}
				if got := cfg.only.has(addrOf(a), key); got != want {
					t.Fatalf("only=%s: key %d of %v: %v", args["only"], key, a, got)
				}
			}
		}
	})
}

func TestOnly(t *testing.T) {
	for text, want := range map[string]string{
		"1+2+10-20":                              "1+2+10-20+none",
		"all":                                    "all",
		"none":                                   "none",
		"any@10.0.0.0/8:leave+all":               "any@10.0.0.0/8:leave+all",
		"5@10.0.0.1#7:leave+0x10#9":              "16#9+5@10.0.0.1#7:leave+none",
		"1@fd00::/64+2@10.0.0.1/255.0.0.255+all": "",
		"2@10.0.0.1/255.0.0.255":                 "2@10.0.0.1/255.0.0.255+none",
		"0-18446744073709551615#3":               "any#3+none",
	} {
		if want == "" {
			want = text
		}
		c, err := parseChoice(text)
		if err != nil || c.String() != want {
			t.Errorf("only=%s is %s, %v; want %s", text, c.String(), err, want)
		}
	}
	for text, want := range map[string]string{
		"":                                   "want keys and ranges",
		"5-4":                                "want keys and ranges",
		"1+x":                                `"x": want keys and ranges`,
		"1#0":                                "the priority is a number from 1",
		"1#x":                                "the priority is a number from 1",
		"1@host":                             `"host" is not an IP address`,
		"1@fd00::1%eth0":                     "is not an IP address",
		"1@10.0.0.1/33":                      `"33" is no mask for 10.0.0.1`,
		"1@10.0.0.1/fd00::":                  "is no mask for 10.0.0.1",
		"1@10.0.0.1/8":                       "has bits that its mask has not",
		"1@0.0.0.0/0":                        "a mask of nothing",
		strings.Repeat("1+", maxRules) + "1": "at most 1024 rules",
	} {
		if _, err := parseArgs(graph.Args{"only": text}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("only=%.40s: %v, want %q", text, err, want)
		}
	}
}

func FuzzOnly(f *testing.F) {
	for _, s := range []string{"all", "none", "1+2+10-20", "any@10.0.0.0/8#7:leave+all", "5@fd00::1/ffff::+0x10-0x20#2"} {
		f.Add(s, uint64(5))
	}
	f.Fuzz(func(t *testing.T, text string, key uint64) {
		c, err := parseChoice(text)
		if err != nil {
			return
		}
		again, err := parseChoice(c.String())
		if err != nil || !again.equal(&c) {
			t.Fatalf("only=%s is %s, and that is %s, %v", text, c.String(), again.String(), err)
		}
		server := addr{0, 0xFFFF0A000001}
		if c.has(server, key) != again.has(server, key) {
			t.Errorf("only=%s and only=%s differ for key %d", text, c.String(), key)
		}
	})
}

func TestMode(t *testing.T) {
	call := func(writes, reads, ahead uint64) table.Rows {
		return table.Rows{Default: table.Call{Params: []table.Value{table.Uint(writes), table.Uint(reads), table.Uint(ahead)}}}
	}
	for _, c := range []struct {
		was, want graph.Args
		rows      table.Rows
	}{
		{graph.Args{}, graph.Args{"mode": "off"}, call(0, 0, 1)},
		{graph.Args{"ahead": "7"}, graph.Args{"mode": "write"}, call(1, 0, 1)}, // as many as before
		{graph.Args{"ahead": "7"}, graph.Args{"mode": "read-write", "ahead": "0"}, call(1, 1, 0)},
		{graph.Args{"ahead": "0", "mode": "off"}, graph.Args{"mode": "write", "ahead": "16384"}, call(1, 0, 1)},
	} {
		got, err := setMode(c.was, c.rows)
		if !maps.Equal(c.want, got) || err != nil {
			t.Errorf("%v: %v, %v", c.was, got, err)
		}
		for k, v := range got {
			c.was[k] = v
		}
		if r := modeOf(c.was); !r.Default.Equal(c.rows.Default) {
			t.Errorf("%v is %v", c.was, r)
		}
	}
	if _, err := setMode(nil, call(0, 1, 1)); err == nil {
		t.Error("reads are steered without writes")
	}
}

// entries are the entries of a table of the rig's app.
func entries(t testing.TB, x *graphtest.Test, n int) (out []string) {
	t.Helper()
	d := &tables()[n]
	if err := x.Inst.ReadTable(graphtest.App, d.Name, func(e *table.Entry) error {
		text := d.Text(e)
		out = append(out, d.KeyText(e)+" "+text.Action+fmt.Sprint(text.Params))
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slices.Sort(out)
	return out
}

// Connections and tails as they are; a key that is deleted is learnt anew.
func TestShow(t *testing.T) {
	for _, family := range []string{"ipv4", "ipv6"} {
		t.Run(family, func(t *testing.T) {
			r := newRig(t, graph.Args{"keys": "8", "conns": "4"})
			conns, tails, others := tableConns4, tableTails4, []int{tableConns6, tableTails6}
			if family == "ipv6" {
				r.client, r.server = netip.MustParseAddr("fd00::2"), netip.MustParseAddr("fd00::1")
				conns, tails, others = tableConns6, tableTails6, []int{tableConns4, tableTails4}
			}
			r.warm(0x10, 100, entryAt(0x9100), 0x9100)
			r.wrote(0x10, 108, 0x9001)
			r.link(0x10, 109, 0x9001, old)
			r.linked(0x10, 109)
			r.wrote(0x10, 110, 0x9002)
			ip := map[string]string{"ipv4": "ipv4", "ipv6": "ipv6"}[family]
			want := []string{
				fmt.Sprintf("entry hdr.%s.src=%v hdr.%s.dst=%v hdr.bth.dst_qp=0x1010 answers", ip, r.server, ip, r.client),
				fmt.Sprintf("entry hdr.%s.src=%v hdr.%s.dst=%v hdr.bth.dst_qp=0x10 requests", ip, r.client, ip, r.server),
			}
			got := entries(t, r.Test, conns)
			slices.Sort(want)
			for i := range want {
				if len(got) != len(want) || !strings.HasPrefix(got[i], want[i]) {
					t.Fatalf("%q, want %q", got, want)
				}
			}
			if all := strings.Join(got, "\n"); !strings.Contains(all, "next_psn:111") || !strings.Contains(all, "acked_psn:110") || !strings.Contains(all, "client_qp:0x1010") || !strings.Contains(all, "written:1") {
				t.Errorf("%s", all)
			}
			got = entries(t, r.Test, tails)
			mine := fmt.Sprintf("entry hdr.%s.dst=%v meta.key=5 tail", ip, r.server)
			if i := slices.IndexFunc(got, func(s string) bool { return strings.HasPrefix(s, mine) }); len(got) != 5 || i < 0 ||
				!strings.Contains(got[i], fmt.Sprintf("va:%#x", entryAt(0x9001))) || !strings.Contains(got[i], "rkey:0x7") || !strings.Contains(got[i], "open:0") {
				t.Errorf("%q", got)
			}
			for _, n := range others {
				if got := entries(t, r.Test, n); len(got) != 0 {
					t.Errorf("of the other family: %q", got)
				}
			}
			drop := func(key uint64) error {
				return r.Inst.WriteTables([]graph.TableChange{{App: graphtest.App, Change: table.Change{Table: tables()[tails].Name, Op: table.Delete,
					Entry: table.Entry{Key: []table.Cond{{V: table.Addr(r.server)}, {V: table.Uint(key)}}}}}}, false)[0]
			}
			// While its append is under way a key stays.
			r.link(0x10, 111, 0x9002, old)
			var e *table.Error
			if err := drop(key); !errors.As(err, &e) || e.Code != table.Busy {
				t.Errorf("%v", err)
			}
			r.linked(0x10, 111)
			if err := drop(key); err != nil {
				t.Error(err)
			}
			if err := drop(key); !errors.As(err, &e) || e.Code != table.Missing {
				t.Errorf("%v", err)
			}
			if got := entries(t, r.Test, tails); len(got) != 4 {
				t.Errorf("%q", got)
			}
			r.wrote(0x10, 112, 0x9003)
			if got := strings.Join(entries(t, r.Test, tails), "\n"); !strings.Contains(got, "meta.key=5 unknown") {
				t.Errorf("%s", got)
			}
		})
	}
}

// A new rule deletes what is known of its keys. Keys of another server are not touched.
func TestRuleOfServer(t *testing.T) {
	r := crew(t, graph.Args{})
	r.wrote(0x10, 108, 0x9001)
	r.link(0x10, 109, 0x9001, old)
	r.linked(0x10, 109)
	r.believed(true, "before")
	insert := func(server string) {
		t.Helper()
		a := netip.MustParseAddr(server)
		if errs := r.Inst.WriteTables([]graph.TableChange{{App: graphtest.App, Change: table.Change{Table: "steered_keys", Op: table.Insert, Entry: table.Entry{
			Priority: 3, Key: []table.Cond{{V: table.Addr(a), M: table.Ones(32)}, {V: table.Uint(key), M: table.Uint(key)}, {Any: true}}, Call: table.Call{Action: actLeave}}}}}, false); errs[0] != nil {
			t.Fatal(errs)
		}
		r.wrote(0x20, 108, 0x9004)
	}
	insert("10.99.0.1")
	r.believed(true, "a rule for another server")
	insert(r.server.String())
	if got := strings.Join(entries(t, r.Test, tableTails4), "\n"); strings.Contains(got, "meta.key=5 ") {
		t.Errorf("%s", got)
	}
	if n := testing.AllocsPerRun(100, func() { r.app().cfg.only.has(addrOf(r.server), key) }); n != 0 {
		t.Errorf("%v allocations to choose a key", n)
	}
}

func (r *rig) app() *Steer { return r.Inst.App(graphtest.App, 0).(*Steer) }

func BenchmarkChoice(b *testing.B) {
	for _, n := range []int{0, 1, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			text := "none"
			for i := range n {
				text += fmt.Sprintf("+%d", 7*i)
			}
			c, err := parseChoice(text)
			if err != nil {
				b.Fatal(err)
			}
			server := addrOf(netip.MustParseAddr("10.0.0.1"))
			k := uint64(0)
			for b.Loop() {
				k += 13
				c.has(server, k&8191)
			}
		})
	}
}
