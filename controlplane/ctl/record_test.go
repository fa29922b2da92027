package ctl

import (
	"fmt"
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
	// Another process has written it.
	text, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, []byte(strings.Replace(string(text), fmt.Sprintf(`"pid": %d`, os.Getpid()), `"pid": 1`, 1)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if f, err = KeepRecord(path); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	// Who has the file has not written yet: what is there is not what it knows.
	if got, err := ReadRecord(path); err != nil || got.Running {
		t.Errorf("%+v runs, and has said nothing: %v", got, err)
	}
	saved := make(chan error, 1)
	go func() { saved <- f.Save(want) }()
	if got, err := ReadRecord(path); err != nil || !got.Running {
		t.Errorf("%+v, which was being written: %v", got, err)
	}
	if err := <-saved; err != nil {
		t.Error(err)
	}
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
