package p4rt_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/quillon/quillon/controlplane/p4info"
	"github.com/quillon/quillon/controlplane/p4rt"
	"github.com/quillon/quillon/nf/clock"
)

// asEnv has the test's binary be another process: a server, whose memory is its own, or
// strangers.
const asEnv = "P4RT_TEST_AS"

func TestMain(m *testing.M) {
	switch as := strings.Fields(os.Getenv(asEnv)); {
	case len(as) == 0:
		os.Exit(m.Run())
	case as[0] == "server":
		serve()
	default:
		strangers(as)
	}
}

func testInfo() *p4info.Info {
	info, err := p4info.Parse([]byte(`tables { preamble { id: 1 name: "t" } action_refs { id: 2 } size: 9 } actions { preamble { id: 2 name: "a" } } controller_packet_metadata { preamble { id: 3 name: "packet_out" } }`))
	if err != nil {
		panic(err)
	}
	return info
}

// serve is a server in plain text, until its input ends.
func serve() {
	s := p4rt.New(p4rt.Config{})
	if err := s.Add(1, &broken{testInfo()}); err != nil {
		panic(err)
	}
	l, err := p4rt.Listen(s, p4rt.ListenConfig{Address: "127.0.0.1:0", Insecure: true})
	if err != nil {
		panic(err)
	}
	fmt.Println(l.Addr())
	_, _ = bufio.NewReader(os.Stdin).ReadByte()
}

// far is a server in a process of its own.
type far struct {
	t       testing.TB
	cmd     *exec.Cmd
	address string
}

// other starts the test's binary as another process, which ends with the test.
func other(t testing.TB, as ...any) (cmd *exec.Cmd, out *bufio.Reader) {
	t.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asEnv+"="+strings.TrimSuffix(fmt.Sprintln(as...), "\n"))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	said, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd, bufio.NewReader(said)
}

func newFar(t testing.TB) *far {
	t.Helper()
	cmd, out := other(t, "server")
	line, err := out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	f := &far{t: t, cmd: cmd}
	f.address = strings.TrimSpace(line)
	return f
}

// peak is the most memory that the server has had, in bytes (VmHWM of proc(5)).
func (f *far) peak() int {
	f.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", f.cmd.Process.Pid))
	if err != nil {
		f.t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kB, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(rest), " kB"))
			if err != nil {
				f.t.Fatal(err)
			}
			return kB << 10
		}
	}
	f.t.Fatal("no VmHWM")
	return 0
}

// connect makes a connection of its own.
func connect(address string) (p4v1.P4RuntimeClient, *grpc.ClientConn) {
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	return p4v1.NewP4RuntimeClient(conn), conn
}

func claimOf(id uint64) *p4v1.StreamMessageRequest {
	return &p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Arbitration{Arbitration: &p4v1.MasterArbitrationUpdate{DeviceId: 1, ElectionId: &p4v1.Uint128{Low: id}}}}
}

func packetOf(size int) *p4v1.StreamMessageRequest {
	return &p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Packet{Packet: &p4v1.PacketOut{Payload: make([]byte, size)}}}
}

// strangers open streams at an address, claim nothing, send packets of a size and do not
// read what is said to that: 32 MB a stream. Who is sent away comes again.
func strangers(as []string) {
	var n [3]int // connections, streams on each, size
	for i := range n {
		n[i], _ = strconv.Atoi(as[i+2])
	}
	m := packetOf(n[2])
	for range n[0] {
		client, _ := connect(as[1])
		for range n[1] {
			go func() {
				for {
					ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
					s, err := client.StreamChannel(ctx)
					for sent := 0; err == nil && sent < 32<<20; sent += n[2] {
						err = s.Send(m)
					}
					if err == nil {
						<-ctx.Done()
					}
					cancel()
					time.Sleep(20 * time.Millisecond)
				}
			}()
		}
	}
	_, _ = bufio.NewReader(os.Stdin).ReadByte()
}

// TestFlood: strangers keep the server's memory small, and the primary, from the same
// host, keeps writing.
func TestFlood(t *testing.T) {
	for _, c := range []struct{ conns, streams, size int }{
		{40, 1, 1 << 20}, {50, 20, 60 << 10}, {50, 20, 1 << 20}, {1000, 1, 8 << 10},
	} {
		t.Run(fmt.Sprintf("%dx%d of %d", c.conns, c.streams, c.size), func(t *testing.T) {
			if testing.Short() && c.streams > 1 {
				t.Skip("takes seconds")
			}
			f := newFar(t)
			primary, conn := connect(f.address)
			defer conn.Close()
			stream, err := primary.StreamChannel(t.Context())
			if err == nil {
				err = stream.Send(claimOf(7))
			}
			if err != nil {
				t.Fatal(err)
			}
			if m, err := stream.Recv(); err != nil || m.GetArbitration().GetStatus().GetCode() != 0 {
				t.Fatalf("%v, %v", m, err)
			}
			before := f.peak()
			other(t, "strangers", f.address, c.conns, c.streams, c.size)
			begun := clk.Now()
			writes, slowest := 0, clock.Duration(0)
			for ; clk.Now().Sub(begun) < 2*time.Second; writes++ {
				ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
				at := clk.Now()
				_, err := primary.Write(ctx, &p4v1.WriteRequest{DeviceId: 1, ElectionId: &p4v1.Uint128{Low: 7}})
				slowest = max(slowest, clk.Now().Sub(at))
				cancel()
				if err != nil {
					t.Fatal("the primary cannot write: ", err)
				}
			}
			grown := f.peak() - before
			t.Logf("%d MB more at the peak; %d writes, the slowest took %v", grown>>20, writes, slowest)
			if grown > 256<<20 {
				t.Errorf("the strangers cost %d MB", grown>>20)
			}
		})
	}
}

var clk = clock.NewWall()
