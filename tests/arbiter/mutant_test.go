package arbiter

import (
	"testing"

	shared "github.com/quillon/quillon/tests/mutant"
)

const (
	dir       = "nf/arbiter"
	schedules = "./tests/arbiter"
	alone     = "./nf/arbiter"
)

func mutants() []shared.Mutant {
	world := func(name, file, old, new string) shared.Mutant {
		return shared.Mutant{Name: name, File: file, Old: old, New: new, By: schedules, Run: "TestSchedules"}
	}
	unit := func(name, file, old, new, run string) shared.Mutant {
		return shared.Mutant{Name: name, File: file, Old: old, New: new, By: alone, Run: run}
	}
	return []shared.Mutant{
		world("who is shared with has it alone", "state.go", "w.holders > 0 && (exclusive || w.exclusive)", "w.holders > 0 && w.exclusive"),
		unit("a word stays one's alone", "locks.go", "if w.holders--; w.holders == 0 {", "if w.holders--; w.holders < 0 {", "TestLine"),
		unit("a later request overtakes the line", "locks.go", "w.head >= 0 || w.bars(words[n].Exclusive)", "w.bars(words[n].Exclusive)", "TestLine"),
		unit("the first of one line is first in all", "locks.go", "w.head != id*message.Most+int32(n) || w.bars", "w.bars", "TestLine"),
		world("a line is not looked at when a lock is given back", "locks.go", "\t\tk.holds--\n\t\ts.touch(p.word)\n", "\t\tk.holds--\n\t\ts.unused(p.word)\n"),
		unit("a line is not looked at when somebody leaves it", "locks.go", "\t\t\tw.tail = before\n\t\t}\n\t\ts.touch(x.places[n])\n", "\t\t\tw.tail = before\n\t\t}\n\t\ts.unused(x.places[n])\n", "TestLine"),
		world("locks are free before their client is shut out", "clients.go", "\tif !k.closed {\n", "\tif !k.closed && s.fence == nil {\n"),
		world("what passed the fence does not settle", "clients.go", "\t\ts.due.set(i, now.Add(wait))\n", "\t\ts.due.set(i, now)\n\t\t_ = wait\n"),
		world("a fence that is full is no matter", "clients.go", "settle, ok = s.fence.Shut(netip.AddrFrom4(c.from.ip), netip.AddrFrom4(t.server), t.qpn, c.from.vids())\n", "ok, _ = true, t\n"),
		world("an answer promises more than is left", "state.go", "/time.Millisecond))\n\t}", "/time.Millisecond)) + 30\n\t}"),
		world("after a restart leases are over", "state.go", "k.heard, k.ends = now, now, now.Add(time.Duration(c.lease)*time.Millisecond)", "k.heard, k.ends = now, now, now"),
		world("a lost state is no matter", "state.go", "\t\th.young = 1\n", ""),
		world("a lost state is forgotten by the next start", "state.go", "\tif h.young != 0 {\n\t\ts.quiet", "\tif !fits {\n\t\ts.quiet"),
		world("a request that comes twice is done twice", "state.go", "case m.Request != sl.request:", "case true:"),
		world("an old request is done", "state.go", "case sl.older(m.Request):", "case sl.older(m.Request + 64):"),
		world("any session will do", "clients.go", "\t\tcase !s.offered(now, from, m):\n\t\t\treturn -1, message.NoSession\n", "\t\tcase false:\n"),
		world("an heir is let in while its predecessor may write", "clients.go", "left > 0 {", "left > time.Hour {"),
		world("who is let in again stays shut out", "clients.go", "\t\ts.fence.Lift(netip.AddrFrom4(c.from.ip), netip.AddrFrom4(t.server), t.qpn, c.from.vids())\n", "\t\t_ = t\n"),
		{Name: "whom the operator shuts out keeps its locks", File: "state.go", Old: "\t\t\t\t\ts.die(now, s.look)\n", New: "", By: schedules, Run: "TestShutOut"},
		world("a token is given out again", "locks.go", "\ts.head.token++\n", "\ts.head.token += uint64(len(words) & 1)\n"),
		world("of a denied request something is held", "locks.go", "w.bars(words[n].Exclusive) {\n\t\t\treturn w, n, message.Held", "w.bars(words[n].Exclusive) {\n\t\t\tif n > 0 {\n\t\t\t\treturn nil, 0, message.OK\n\t\t\t}\n\t\t\treturn w, n, message.Held"),
		unit("a half made grant is left", "memory.go", "\tdrop(s.head.pending >> 1)\n", "", "TestKilled"),
		unit("a grant that nobody heard of is left", "memory.go", "\t\t\tdrop(l.token)\n", "", "TestKilled"),
		unit("the answer of a half made grant is left", "memory.go", "\t\t*l = slot{request: request - 1, op: message.Acquire, result: message.TimedOut}\n", "", "TestKilled"),
		unit("who holds nothing is never forgotten", "clients.go", "\t\tdefault:\n\t\t\ts.forget(i)\n", "\t\tdefault:\n\t\t\ts.due.set(i, now.Add(idle))\n", "TestLease"),
		unit("whoever may not ask is answered", "arbiter.go", "a.from != nil && !slices", "false && !slices", "TestStrangers"),
		unit("an answer is answered", "arbiter.go", "|| a.m.Answer ||", "||", "TestStrangers"),
	}
}

// TestMutants: each of these small errors is found.
func TestMutants(t *testing.T) { shared.Run(t, dir, mutants()) }

// TestMutantTexts: each of them can be made.
func TestMutantTexts(t *testing.T) { shared.Texts(t, dir, mutants()) }
