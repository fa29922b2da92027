package afxdp

import (
	"os/exec"
	"testing"
)

// A process that has bound a queue pair is killed, and one of its interfaces comes into another pair, as its second one: a splice of "quillon bridge insert", or another cable. The other one's program is not there, and nobody looks at the second
// one's: what is bound there is not found, the program is replaced, and frames to the queue pair cross.
func TestAttack9OrphansOfSecond(t *testing.T) {
	newBed(t, 1500, 1)
	m := startChild(t, childBinds, "ready")
	_ = m.cmd.Process.Kill()
	_ = m.cmd.Wait()
	for _, c := range [][]string{{"link", "add", "other0", "type", "veth", "peer", "name", "other1"}, {"link", "set", "other0", "up"}, {"link", "set", "other1", "up"}} {
		if out, err := exec.Command("ip", c...).CombinedOutput(); err != nil {
			t.Fatal(err, string(out))
		}
	}
	for _, names := range [][2]string{{"dutB", "other0"}, {"other0", "dutB"}} {
		w, err := OpenPair(PairConfig{A: names[0], B: names[1], Options: Options{Filter: &boundFilter}, Later: true})
		if err != nil {
			t.Logf("%v: refused, which is right: %v", names, err)
			continue
		}
		n, err := w.Orphans(nil)
		t.Logf("%v: %d orphans, %v", names, n, err)
		if n == 0 && err == nil {
			t.Errorf("%v: one queue pair is bound at %s, and 0 are found", names, "dutB")
		}
		_ = w.Close()
	}
}
