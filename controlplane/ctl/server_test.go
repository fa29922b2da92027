package ctl

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"

	"github.com/quillon/quillon/controlplane/ctl/ctltest"
	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/p4src"
)

// bmv2Server is a simple_switch_grpc without interfaces; its address.
func bmv2Server(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("simple_switch_grpc")
	if err != nil {
		t.Skip("simple_switch_grpc is not on the PATH: plans are not tried on bmv2")
	}
	var addresses [2]string // of P4Runtime, of its own control
	for i := range addresses {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		addresses[i] = l.Addr().String()
		l.Close()
	}
	_, port, _ := net.SplitHostPort(addresses[1])
	cmd := exec.Command(path, "--no-p4", "--device-id", "1", "--thrift-port", port, "--", "--grpc-server-addr", addresses[0], "--cpu-port", "510")
	cmd.Dir = t.TempDir()
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if s := cmd.ProcessState.String(); s != "signal: killed" {
			t.Errorf("simple_switch_grpc ended by itself: %s: %s", s, said.Bytes()[max(0, said.Len()-1000):])
		}
	})
	return addresses[0]
}

// possible leaves out what bmv2 does not do.
func possible(list []*p4v1.Entity) []*p4v1.Entity {
	for _, e := range list {
		if s := e.GetPacketReplicationEngineEntry().GetCloneSessionEntry(); s != nil {
			s.PacketLengthBytes = 0
		}
		// It takes 0..255 for all there is, of a field of 16 bits, too.
		for _, m := range e.GetTableEntry().GetMatch() {
			if r := m.GetRange(); r != nil && bytes.Count(r.High, []byte{0xff}) == len(r.High) {
				r.High[len(r.High)-1] = 0xfe
				if bytes.Compare(r.Low, r.High) > 0 && len(r.Low) == len(r.High) {
					r.Low = r.High
				}
			}
		}
	}
	return list
}

// From any state to any other on quillon's own server and on bmv2, with real
// programs: every update is accepted, then there is nothing left to do, and what is
// read of it and written again is the same.
func TestServersConverge(t *testing.T) {
	t.Run("quillon", func(t *testing.T) { converge(t, ctltest.Engine(t)) })
	t.Run("simple_switch_grpc", func(t *testing.T) { converge(t, bmv2Server(t)) })
}

func converge(t *testing.T, address string) {
	s := open(t, &Dialer{}, address, 1, options())
	if err := s.Await(within(t)); err != nil {
		t.Fatal(err, s.Status().Err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the session: %+v", s.Status())
		}
	})
	type one struct {
		name string
		info *p4info.Info
		p    *Pipeline
	}
	var all []one
	for i, info := range infos(t)[1:] {
		name := p4src.Programs()[i]
		config, err := p4src.Files.ReadFile(name + ".json")
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, one{name, info, NewPipeline(info.Proto, config)})
	}
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		x := all[rapid.IntRange(0, len(all)-1).Draw(rt, "program")]
		ctx := within(t)
		if err := s.Load(ctx, x.p); err != nil {
			rt.Fatal(err)
		}
		limits := Limits{Updates: rapid.IntRange(1, 5).Draw(rt, "batch")}
		for range 3 {
			d := &Device{Target: Target{Name: "x"}, Info: x.info, Pipeline: x.p, Entities: possible(genEntities(rt, x.info))}
			diff, err := s.Compare(ctx, d, LeaveValues)
			if err != nil {
				rt.Fatal(err)
			}
			for _, b := range diff.Plan(limits) {
				if rapid.Bool().Draw(rt, "reversed") {
					slices.Reverse(b.Changes)
				}
				if err := s.Write(ctx, 0, b.Updates()...); err != nil {
					rt.Fatalf("%s: %v: %s", x.name, err, err.(*WriteError).Failed[0].Text(x.info))
				}
			}
			if diff, err = s.Compare(ctx, d, LeaveValues); err != nil || len(diff.Changes) > 0 {
				rt.Fatalf("%s: %d changes are left: %v: %s", x.name, len(diff.Changes), err, diff.Changes[0].Text(x.info))
			}
		}
		if len(x.info.Registers) > 0 { // a million cells
			return
		}
		if err := os.WriteFile(filepath.Join(dir, "p.json"), x.p.Config, 0o644); err != nil {
			rt.Fatal(err)
		}
		file := filepath.Join(dir, "d.yaml")
		if _, err := s.Save(ctx, file, filepath.Join(dir, "p.txtpb"), filepath.Join(dir, "p.json")); err != nil {
			rt.Fatal(err)
		}
		first, err := os.ReadFile(file)
		if err != nil {
			rt.Fatal(err)
		}
		in, err := ReadIntent(file)
		if err != nil {
			rt.Fatalf("%v\n%s", err, first)
		}
		other := &Device{Target: Target{Name: "y"}, Info: x.info, Pipeline: x.p, Entities: possible(genEntities(rt, x.info))}
		for _, d := range []*Device{other, in.Devices[0]} {
			diff, err := s.Compare(ctx, d, CompareValues)
			if err != nil {
				rt.Fatal(err)
			}
			if o, err := s.Apply(ctx, diff, limits); err != nil || o.Err() != nil {
				rt.Fatal(err, o.Err())
			}
		}
		if _, err := s.Save(ctx, file, filepath.Join(dir, "p.txtpb"), filepath.Join(dir, "p.json")); err != nil {
			rt.Fatal(err)
		}
		again, err := ReadIntent(file)
		if err != nil {
			rt.Fatal(err)
		}
		restored := map[string]*p4v1.Entity{}
		for _, e := range again.Devices[0].Entities {
			restored[p4info.Key(e)] = e
		}
		for _, e := range in.Devices[0].Entities {
			if r := restored[p4info.Key(e)]; r == nil || !equal(e, r) || !proto.Equal(e.GetTableEntry().GetCounterData(), r.GetTableEntry().GetCounterData()) {
				rt.Fatalf("%s was restored as %s", Text(x.info, e), Text(x.info, r))
			}
		}
		if len(restored) != len(in.Devices[0].Entities) {
			rt.Fatalf("%d entities were restored as %d", len(in.Devices[0].Entities), len(restored))
		}
	})
}

// A controller that runs is primary again when one for the moment has gone: the
// specification has nobody primary below the highest election id ever seen.
func TestPrimaryComesBack(t *testing.T) {
	for _, x := range []struct {
		name  string
		serve func(*testing.T) string
	}{
		{"quillon", func(t *testing.T) string { return ctltest.Engine(t) }},
		{"simple_switch_grpc", bmv2Server},
	} {
		t.Run(x.name, func(t *testing.T) {
			at := x.serve(t)
			var d Dialer
			stays := open(t, &d, at, 1, options())
			if err := stays.Await(within(t)); err != nil {
				t.Fatal(err)
			}
			other := open(t, &d, at, 1, options())
			if err := other.Await(within(t)); err != nil {
				t.Fatal(err)
			}
			until(t, stays, "backup", isState(Backup))
			third := open(t, &d, at, 1, options())
			if err := third.Await(within(t)); err != nil {
				t.Fatal(err)
			}
			until(t, other, "backup", isState(Backup))
			third.Close()
			// Of the two that are left one is.
			ctltest.Eventually(t, "a primary", func() bool {
				return (stays.Status().State == Primary) != (other.Status().State == Primary)
			})
			other.Close()
			until(t, stays, "primary again", isState(Primary))
			stays.Close()
			late := options() // its clock is behind
			late.Election = ElectionID{Low: 1}
			// The server may not have seen yet that the one before has gone.
			ctltest.Eventually(t, "ready", func() bool {
				stays = open(t, &d, at, 1, late)
				err := stays.Ready(within(t))
				if err != nil {
					stays.Close()
				}
				if err != nil && !errors.Is(err, ErrNotPrimary) {
					t.Error(err)
				}
				return err == nil
			})
			if err := stays.Write(within(t), 0); errors.Is(err, ErrNotPrimary) {
				t.Error(err)
			}
		})
	}
}
