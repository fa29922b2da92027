package attach

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/graph/graphtest"
	"github.com/quillon/quillon/nf/hdr"
)

// TestManyDAGs: what a frame takes does not depend on how many DAGs there are: neither a board's answer, nor one that waits for a board.
func TestManyDAGs(t *testing.T) {
	took := func(dags int) (answers, waits time.Duration) {
		var b, rules strings.Builder
		b.WriteString("regions: {count: 4, area: 1}\ntasks: {m: {kind: mark}}\ntenants: {u: {}}\ndags:\n")
		rules.WriteString("rules:\n")
		for i := range dags {
			fmt.Fprintf(&b, "- {uid: %d, tenant: u, run: m}\n", i+1)
			fmt.Fprintf(&rules, "- {match: 'src:10.0.%d.%d', dag: %d}\n", i/256, i%256, i+1)
		}
		x := graphtest.New(t, *Kind(functions()...), graph.Args{"deployment": b.String() + rules.String()})
		p := x.App().(*app)
		p.mac, p.boards[0] = [6]byte{2, 9}, board{up: true, mac: [6]byte{2, 8}}
		p.turn(x.Clock.Now(), dags-1, &Table{Mode: Go, Boards: 1})
		answer := make([]byte, outerLen, 200)
		copy(answer, p.mac[:])
		copy(answer[6:], p.boards[0].mac[:])
		answer[12], answer[13] = hdr.EtherNSH>>8, hdr.EtherNSH&0xFF
		hdr.NSH(answer[hdr.EthernetLen:]).Encode(&hdr.NSHFields{TTL: 63, NextProtocol: hdr.NSHNextEthernet, SPI: uint32(dags), SI: inPool | 1<<4})
		answer = append(answer, frame(1, 1, 1, 100)...)
		var many [][]byte
		for range 64 {
			many = append(many, answer)
		}
		answers, waits = time.Hour, time.Hour
		for range 50 {
			began := time.Now()
			if n := len(x.Push("b0", many...).Out["p0"]); n != len(many) {
				t.Fatalf("%d of %d answers came out", n, len(many))
			}
			answers = min(answers, time.Since(began))
		}
		x.Push("p0", frame(0, 1, 1, 100)) // to the first DAG, which no board runs
		if p.Held() != 1 {
			t.Fatal("it does not wait")
		}
		for range 50 {
			began := time.Now()
			x.Advance(10 * poll)
			waits = min(waits, time.Since(began))
		}
		return answers, waits
	}
	few, fewWait := took(2)
	many, manyWait := took(4000)
	t.Logf("64 answers: %v of 2 DAGs, %v of 4,000; while one waits: %v, %v", few, many, fewWait, manyWait)
	if many > 5*few {
		t.Errorf("64 answers take %v with 4,000 DAGs, %v with 2", many, few)
	}
	if manyWait > 5*fewWait {
		t.Errorf("while a frame waits, 10 breaths take %v with 4,000 DAGs, %v with 2", manyWait, fewWait)
	}
}
