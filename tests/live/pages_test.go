package live

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/quillon/quillon/nf/clock"
)

// stored has the datagrams of 10.0.0.2 touch memory.
const stored = `
          regions: {count: %d, area: 1}
          tasks:
            store: {kind: dummy, memory: 4M, args: {touch: "1k", memory: 4M, hold: "100"}}
          tenants: {bob: {}}
          dags:
            - {uid: 8, tenant: bob, run: store}
          rules:
            - {match: "proto:17+src:10.0.0.2", dag: 8}
`

// say runs a command about the first board.
func (b *boards) say(args ...string) (string, error) {
	var out []byte
	err := b.box.Do(func() (err error) {
		out, err = exec.Command(quillon, append(args, "--name", "a")...).CombinedOutput()
		return err
	})
	return string(out), err
}

// A board with 8 MB of memory has 12 MB for a task: the rest is at its peer. When that is
// killed the task stops, and it runs again when it is told to with what there is.
func TestPages(t *testing.T) {
	b := raiseBoards(t, stored)
	for name, memory := range map[string]string{"a.yaml": "8M", "b.yaml": "16M"} {
		file := filepath.Join(b.dir, name)
		text, err := os.ReadFile(file)
		if err == nil {
			err = os.WriteFile(file, []byte(strings.Replace(string(text), "pool-port: p14\n", "pool-port: p14\n      memory: "+memory+"\n", 1)), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	b.start(0)
	now, err := b.say("snic", "show")
	if err != nil {
		t.Fatal(now, err)
	}
	deploy := func(text string) (string, error) {
		file := filepath.Join(b.dir, "now.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return b.say("snic", "deploy", file)
	}
	more := strings.ReplaceAll(now, "4M", "12M")
	if out, err := deploy(more); err == nil || !strings.Contains(out, "there is room for") {
		t.Fatalf("more than there is without a peer: %s", out)
	}
	b.start(1)
	var out string
	b.until("memory at the peer", func() bool {
		out, err = deploy(more)
		return err == nil || !strings.Contains(out, "there is room for")
	})
	if err != nil {
		t.Fatal(out)
	}
	var clients []interface{ Close() error }
	own := b.client
	swapped := regexp.MustCompile(`store .* [0-9]+M +[1-9][0-9]*M +12M +-\n`)
	back, sent := 0, 0
	clk := clock.NewWall()
	var took []time.Duration
	b.until("page at the peer", func() bool {
		for range 20 {
			b.client = b.dial(b.host)
			clients = append(clients, b.client)
			sent++
			at := clk.Now()
			if b.pings(fmt.Sprint("flow ", sent)) {
				back++
			}
			took = append(took, clk.Now().Sub(at))
		}
		out, err = b.say("snic", "tasks")
		return err == nil && sent >= 100 && swapped.MatchString(out)
	})
	// All that waited for a page, too.
	if back != sent {
		t.Errorf("of %d datagrams %d came back: %s\n%s", sent, back, out, b.counters(0))
	}
	slices.Sort(took)
	t.Logf("%d datagrams: median %v, 90 %% within %v, all within %v; %s", sent, took[len(took)/2], took[len(took)*9/10], took[len(took)-1], out)
	if err := b.process[1].Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-b.process[1].Done()
	b.until("fault", func() bool {
		out, err = b.say("snic", "tasks")
		return err == nil && strings.Contains(out, "is lost with the board that had it")
	})
	b.client = own
	if b.ping("stopped") {
		t.Error("it comes back through a task that has stopped")
	}
	if out, err := b.say("snic", "restart", "store"); err == nil || !strings.Contains(out, "there is room for") {
		t.Errorf("it starts without room: %s", out)
	}
	if out, err := deploy(now); err != nil {
		t.Error(out)
	}
	b.until("start of the task", func() bool { return b.ping("again") })
	for _, c := range clients {
		_ = c.Close()
	}
}
