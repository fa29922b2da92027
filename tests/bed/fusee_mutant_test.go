package bed

import (
	"testing"

	shared "github.com/quillon/quillon/tests/mutant"
)

const (
	fuseeDir  = "internal/rack/fusee"
	sharedDir = "internal/rack/onesided"
	inOrders  = "./internal/rack/fusee"
	fuseeBed  = "./tests/bed"
	anyOrder  = "TestAnyOrder"
	inRound   = "TestVanishesInARound"
	whoDies   = "TestFuseeDies"
	vanishing = "TestFuseeVanishes"
)

// fuseeMutants break what FUSEE's store promises.
func fuseeMutants() []shared.Mutant {
	return []shared.Mutant{
		{Name: "insertions are for good at once", File: "find.go", Old: "if !c.cfg.Blind {", New: "if false {", By: inOrders, Run: anyOrder},
		{Name: "an insertion does not look again", File: "round.go", Old: "\t\t\ts.at = s.pos\n", New: "\t\t\ts.at, s.entries = s.pos, nil\n\t\t\tlookup{s.session}.insert(now, nil, nil)\n\t\t\treturn\n", By: inOrders, Run: anyOrder},
		{Name: "two tombs are alike", File: "layout.go", Old: "return s&^(tentative|0xFF) | deleted", New: "return deleted", By: inOrders, Run: anyOrder},
		{Name: "who loses does not wait", File: "round.go", Old: "\ts.watchAt = now\n", New: "\ts.watchAt = now\n\ts.finish(now, lost)\n\treturn\n", By: inOrders, Run: anyOrder},
		{Name: "backups keep words that lost", File: "round.go", Old: "\t\tif v != w {\n\t\t\ts.do(now, stepFix)", New: "\t\tif v == 0 {\n\t\t\ts.do(now, stepFix)", By: inOrders, Run: anyOrder},
		{Name: "the greatest wins", File: "round.go", Old: "least = min(least, v)", New: "least = max(least, v)", By: inOrders, Run: "TestRules"},
		{Name: "what is tentative is left by recovery", File: "recover.go", Old: "if p&tentative != 0 {", New: "if false {", By: fuseeBed, Run: whoDies},
		{Name: "what only backups have is left by recovery", File: "recover.go", Old: "if w := word(k); w != 0 && w.at() == a {", New: "if w := word(k); false {", By: fuseeBed, Run: whoDies},
		{Name: "recovery frees what is used", File: "recover.go", Old: "if !primary {", New: "if primary = false; !primary {", By: fuseeBed, Run: whoDies},
		{Name: "copies are not made alike when a node vanishes", File: "master.go", Old: "if i == from {", New: "if i >= 0 {", By: inOrders, Run: inRound},
		{Name: "the master does not wait for leases", File: "master.go", Old: "max(now, m.granted.Add(m.cfg.Margin))", New: "now", By: inOrders, Run: inRound},
		{Name: "a new view is not looked at", File: "session.go", Old: "if v.Epoch != s.epoch {", New: "if v.Epoch > 1<<20 {", By: fuseeBed, Run: vanishing},
	}
}

// sharedMutants break what the stores' clients have in common; FUSEE's tests find them.
func sharedMutants() []shared.Mutant {
	return []shared.Mutant{
		{Name: "memory is used anew at once", File: "slab.go", Old: "if now.Sub(p.freed) < grace {", New: "if now.Sub(p.freed) < grace/1000 {", By: inOrders, Run: "TestGrace"},
		{Name: "the first node's answer will do", File: "session.go", Old: "return s.pending == 0\n", New: "return true\n", By: inOrders, Run: anyOrder},
		{Name: "who lost a queue pair takes answers of before", File: "session.go", Old: "if post != s.posts || s.pending == 0 {", New: "if s.pending == 0 {", By: "./internal/rack/onesided", Run: "TestPosts"},
	}
}

func TestMutantsOfFusee(t *testing.T) {
	shared.Run(t, fuseeDir, fuseeMutants())
	shared.Run(t, sharedDir, sharedMutants())
}

// Each mutant can be made.
func TestMutantTextsOfFusee(t *testing.T) {
	shared.Texts(t, fuseeDir, fuseeMutants())
	shared.Texts(t, sharedDir, sharedMutants())
}
