package main

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"testing"
)

// TestLog: text lines have the usual form, a JSON line has instance, level and attributes, and lines below
// the level are not written.
func TestLog(t *testing.T) {
	var w bytes.Buffer
	log, err := (&logFlags{"info", "text"}).logger(&w, "box")
	if err != nil {
		t.Fatal(err)
	}
	log.Warn("worker 0 waits", at(0), "worker", 0)
	log.Info("it goes on", "port", "a")
	log.Debug("not told")
	if got, want := w.String(), "quillon: 1970-01-01T00:00:00.000Z worker 0 waits\nquillon: it goes on\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	w.Reset()
	if log, err = (&logFlags{"warn", "json"}).logger(&w, "box"); err != nil {
		t.Fatal(err)
	}
	log.Info("not told")
	log.Error("gone: \"b\"\nand more", "port", "b")
	var line struct{ Time, Level, Msg, Instance, Port string }
	if err := json.Unmarshal(w.Bytes(), &line); err != nil || strings.Count(w.String(), "\n") != 1 || line.Level != "ERROR" || line.Msg != "gone: \"b\"\nand more" || line.Instance != "box" || line.Port != "b" {
		t.Errorf("%v: %s", err, w.String())
	}
	for _, f := range []logFlags{{"loud", "text"}, {"info", "xml"}} {
		if _, err := f.logger(&w, "box"); err == nil {
			t.Errorf("%v is taken", f)
		}
	}
}

// TestLogOfRun: events of a running instance are JSON lines, and stderr has nothing else.
func TestLogOfRun(t *testing.T) {
	if exec.Command("unshare", "-n", "true").Run() != nil {
		t.Skip("needs root to make network namespaces")
	}
	inLab(t, `
cp examples/firewall.yaml fw.yaml
quillon run fw.yaml --log-format json
sed -i 's/in: a}/in: b}/' fw.yaml
kill -HUP $pid
until grep -q '"msg":"SIGHUP: ' run.err; do sleep 0.1; done
echo 'nonsense: 1' >>fw.yaml
kill -HUP $pid
until grep -q '"level":"ERROR","msg":"SIGHUP: nothing changed' run.err; do sleep 0.1; done
a ip link set $(a ip -o -4 addr show to 10.0.0.1 | awk '{print $2}') down
until grep -q '"msg":"a (eth1): the link is down"' run.err; do sleep 0.1; done
grep -q '"instance":"fw","at":"20.*","port":"a","dev":"eth1"}' run.err
quillon stop
if grep -v '^{"time":".*}$' run.err; then exit 1; fi
if command quillon run --inline eth1,eth2 --nf wire --log-level loud 2>err; then exit 1; fi
grep -q 'quillon: --log-level loud: want debug' err
`)
}
