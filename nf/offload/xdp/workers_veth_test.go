package xdp_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/quillon/quillon/internal/rack/topo"
	"github.com/quillon/quillon/nf/clock"
	"github.com/quillon/quillon/nf/firewall"
	"github.com/quillon/quillon/nf/graph"
	"github.com/quillon/quillon/nf/port/open"
)

// TestWorkersVeth: over interfaces with several queues, each with a worker, frames of many flows arrive, each once, with offload=on as without.
func TestWorkersVeth(t *testing.T) {
	for _, workers := range []int{2, 4} {
		t.Run(fmt.Sprint(workers), func(t *testing.T) {
			var arrived [2][]string
			for n, offload := range []string{"off", "on"} {
				arrived[n] = overQueues(t, workers, offload)
			}
			if !slices.Equal(arrived[0], arrived[1]) {
				t.Errorf("%d frames arrive without, %d with", len(arrived[0]), len(arrived[1]))
			}
		})
	}
}

// end is a raw socket at a far end. It collects numbers of frames.
type end struct {
	fd  int
	mu  sync.Mutex
	got []string
}

func newEnd(name string) (*end, error) {
	l, err := netlink.LinkByName(name)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	proto := binary.NativeEndian.Uint16([]byte{0, 3}) // ETH_P_ALL
	return &end{fd: fd}, errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: proto, Ifindex: l.Attrs().Index}))
}

// collect notes what arrives from another MAC address until stop is closed.
func (e *end) collect(own byte, stop chan struct{}) {
	b := make([]byte, 2048)
	for {
		n, _, err := unix.Recvfrom(e.fd, b, 0)
		if err == nil && n == 64 && b[12] == 8 && b[13] == 0 && b[11] != own {
			e.mu.Lock()
			e.got = append(e.got, fmt.Sprintf("%x", b[:n]))
			e.mu.Unlock()
		}
		select {
		case <-stop:
			return
		default:
		}
	}
}

func (e *end) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.got)
}

// overQueues sends frames of flows both ways, and returns those that arrive, sorted.
func overQueues(t *testing.T, workers int, offload string) []string {
	const flows, rounds = 96, 40
	var spaces [3]*topo.Space
	for i := range spaces {
		s, err := topo.NewSpace(i == 0)
		if err != nil {
			t.Skip(err)
		}
		defer s.Close()
		spaces[i] = s
	}
	for i, name := range []string{"va", "vb"} {
		if err := topo.VethOf(workers, spaces[0], name, spaces[1+i], name+"0"); err != nil {
			t.Fatal(err)
		}
	}
	s := &graph.Spec{
		Ports: map[string]graph.PortSpec{"pa": {Kind: open.AFXDP, Args: graph.Args{"dev": "va"}}, "pb": {Kind: open.AFXDP, Args: graph.Args{"dev": "vb"}}},
		Apps:  map[string]graph.AppSpec{"firewall": {Kind: "firewall", Args: graph.Args{"rules": "allow+in:a", "offload": offload, "half-per-source": "65536"}}},
		Links: []string{"pa.out -> firewall.a", "firewall.b -> pb.in", "pb.out -> firewall.b", "firewall.a -> pa.in"},
	}
	var x *open.Running
	if err := spaces[0].Do(func() (err error) {
		x, err = open.Start(graph.Config{Spec: s, Kinds: []graph.Kind{*firewall.Kind()}}, open.Config{Clock: clock.NewWall()})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := spaces[0].Do(x.Stop); err != nil {
			t.Error(err)
		}
	}()
	if n := x.Graph.Workers(); n != workers {
		t.Fatalf("%d workers, want %d", n, workers)
	}
	var ends [2]*end
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for i, name := range []string{"va0", "vb0"} {
		if err := spaces[1+i].Do(func() (err error) { ends[i], err = newEnd(name); return err }); err != nil {
			t.Fatal(err)
		}
		defer unix.Close(ends[i].fd)
		wg.Go(func() { ends[i].collect([]byte{9, 8}[i], stop) })
	}
	client, server := [6]byte{2, 0, 0, 0, 0, 9}, [6]byte{2, 0, 0, 0, 0, 8}
	for round := range rounds {
		for from := range 2 {
			want := ends[1-from].count() + flows
			for flow := range flows {
				f := datagram(client, server, "10.0.0.2", "203.0.113.1", uint16(5000+flow), 53)
				if from == 1 {
					f = datagram(server, client, "203.0.113.1", "10.0.0.2", 53, uint16(5000+flow))
				}
				binary.BigEndian.PutUint32(f[50:], uint32(round))
				if _, err := unix.Write(ends[from].fd, f); err != nil {
					t.Fatal(err)
				}
			}
			for n := 0; ends[1-from].count() < want && n < 500; n++ {
				time.Sleep(2 * time.Millisecond)
			}
		}
	}
	close(stop)
	wg.Wait()
	a, err := x.Graph.Ahead()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("offload=%s: %+v", offload, a)
	if all := uint64(2 * flows * rounds); offload == "on" && a.Finished < all/2 || offload == "off" && a.Finished > 0 {
		t.Errorf("offload=%s: the kernel has run %d of %d frames", offload, a.Finished, all)
	}
	all := append(ends[0].got, ends[1].got...)
	slices.Sort(all)
	if n := len(slices.Compact(slices.Clone(all))); n != 2*flows*rounds || len(all) != n {
		t.Errorf("offload=%s: %d frames arrive, %d different ones, of %d", offload, len(all), n, 2*flows*rounds)
	}
	return all
}
