package main

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quillon/quillon/internal/admin"
	"github.com/quillon/quillon/nf/graph"
)

// Table commands against an instance with apps that have tables.
func TestTableCommand(t *testing.T) {
	inst, err := graph.New(graph.Config{Kinds: kinds(), Spec: &graph.Spec{Apps: map[string]graph.AppSpec{"steer": {Kind: "clover-steer"}, "box": {Kind: "swordbox"},
		"nic": {Kind: "snic", Args: graph.Args{"deployment": "regions: {count: 1, area: 1}"}}}}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := admin.Listen(context.Background(), admin.Config{Name: "test", Path: filepath.Join(t.TempDir(), "test.sock"), Instance: inst})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(s.Close(), inst.Close()); err != nil {
			t.Error(err)
		}
	})
	run := func(args ...string) (string, error) {
		root := newRootCmd()
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetArgs(append([]string{"table"}, append(args, "--control", s.Path())...))
		err := root.Execute()
		return out.String(), err
	}
	for _, c := range []struct{ args, out, err string }{
		{"list box", "box.guard to change: default what", ""},
		{"list steer", "steer.tails_ipv6 to change: delete keys", ""},
		{"show steer.mode", "default: set_mode writes=1 reads=1 ahead=1\n", ""},
		{"default steer.mode set_mode writes=1 reads=0 ahead=1", "", ""},
		{"show steer.mode", "default: set_mode writes=1 reads=0 ahead=1\n", ""},
		{"default steer.mode", "", ""},
		{"show steer.mode", "default: set_mode writes=1 reads=1 ahead=1\n", ""},
		{"insert steer.steered_keys key=10..20 ipv4.dst=10.0.0.0/8 priority=5 leave", "", ""},
		{"insert steer.steered_keys key=0x63 leave", "", ""},
		{"show steer.steered_keys", "default: steer\nhdr.ipv4.dst=10.0.0.0&&&255.0.0.0 meta.key=10..20 priority=5  leave\nmeta.key=99..99 priority=1                                   leave\n", ""},
		{"show steer.steered_keys key=99", "default: steer\nmeta.key=99..99 priority=1  leave\n", ""},
		{"show steer.steered_keys --max 1", "priority=5  leave\n…\n", ""},
		{"show steer.steered_keys key=99 --json", `"meta.key": "99..99"`, ""},
		{"delete steer.steered_keys key=99", "", ""},
		{"show steer.steered_keys key=99", "default: steer\n", ""},
		{"default box.guard drop", "", ""},
		{"insert box.tracked va=0x10000..0x1ffff track", "", ""},
		{"show box.tracked", "meta.va=0x10000..0x1ffff priority=1  track\n", ""},
		{"show box.clients", "", ""},
		{"insert nic.tasks task=x run kind=dummy args= more=", "", ""},
		{"insert nic.tasks task=y run kind=dummy", "", ""},
		{"show nic.tasks", "task=x  run kind=dummy args= more=\ntask=y  run kind=dummy args= more=\n", ""},

		{"show steer", "", `"steer" is not of the form APP.TABLE`},
		{"show steer.", "", `"steer." is not of the form APP.TABLE`},
		{"show steer.x", "", "there is no table steer.x; quillon table list"},
		{"list stear", "", `no app named "stear" has tables`},
		{"insert steer.steered_keys key=10..20 priority=0 leave", "", "priority=0: want a number from 1"},
		{"insert steer.steered_keys key=1 key=2 leave", "", "key is given twice"},
		{"insert steer.steered_keys key= leave", "", `"key=" is not of the form KEY=VALUE`},
		{"insert steer.steered_keys key=1 leave =now", "", `"=now" is not of the form KEY=VALUE`},
		{"default steer.mode set_mode writes= reads=0 ahead=1", "", "writes=: want a number of 1 bit"},
		{"insert steer.steered_keys key=1 leave now", "", `"now" is not of the form PARAM=VALUE`},
		{"insert steer.steered_keys key=1", "", "the action is missing"},
		{"insert steer.connections src=1", "", "the action is missing"},
		{"insert steer.steered_keys key=10..20 ipv4.dst=10.0.0.0/8 priority=5 leave", "", "has entry hdr.ipv4.dst=10.0.0.0&&&255.0.0.0 meta.key=10..20 priority=5 already"},
		{"delete steer.steered_keys key=77", "", "has no entry meta.key=77..77 priority=1"},
		{"default steer.mode set_mode writes=2 reads=0 ahead=1", "", "writes=2: want a number of 1 bit"},
		{"delete box.clients src=10.0.0.1 dst=10.0.0.2 qp=5", "", "no key field qp; it has"},
		{"delete box.clients src=10.0.0.1 dst=10.0.0.2 dst_qp=5", "", "there is no connection from 10.0.0.1 to 10.0.0.2/0x5"},
	} {
		out, err := run(strings.Fields(c.args)...)
		out, c.out = strings.Join(strings.Fields(out), " "), strings.Join(strings.Fields(c.out), " ")
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s: %v, want %q", c.args, err, c.err)
			}
			continue
		}
		if err != nil || !strings.Contains(out, c.out) {
			t.Errorf("%s: %v\n%s\nwant\n%s", c.args, err, out, c.out)
		}
	}
	if got := inst.Spec().Apps["box"].Args; got["guard"] != "drop" || got["track"] != "10000+10000" {
		t.Errorf("%v", got)
	}
}
