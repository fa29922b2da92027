package ctl

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b.json")
	f, err := KeepRecord(path)
	if err != nil {
		t.Fatal(err)
	}
	want := Record{Intent: "x.yaml", Election: ElectionID{5, 6}, At: 7, Devices: []DeviceStatus{{
		Status: Status{Device: "s1", State: Backup, Election: ElectionID{5, 9}, Leader: ElectionID{9, 9}}, Aligned: true, Problem: "p",
	}}}
	if err := f.Save(want); err != nil {
		t.Fatal(err)
	}
	if _, err := KeepRecord(path); err == nil || !strings.Contains(err.Error(), "keeps it already") {
		t.Errorf("%v", err)
	}
	got, err := ReadRecord(path)
	want.PID, want.Running = os.Getpid(), true
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v: %v", got, want, err)
	}
	f.Close()
	if got, _ := ReadRecord(path); got.Running {
		t.Error("still runs")
	}
	if f, err = KeepRecord(path); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// The clock went back.
	if e := f.Election(1e9); e != (ElectionID{5, 10}) {
		t.Errorf("election %v", e)
	}
	if e := f.Election(10e9); e != (ElectionID{10, 0}) {
		t.Errorf("election %v", e)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadRecord(path); err == nil {
		t.Error("read nonsense")
	}
	t.Setenv("XDG_STATE_HOME", "/x")
	if d, err := RecordDir(); err != nil || d != "/x/quillon/ctl" {
		t.Errorf("%s %v", d, err)
	}
	t.Setenv("XDG_STATE_HOME", "")
	t.Setenv("HOME", "/h")
	if d, err := RecordDir(); err != nil || d != "/h/.local/state/quillon/ctl" {
		t.Errorf("%s %v", d, err)
	}
}
