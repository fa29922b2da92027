// Package etcdtest runs members of an etcd on this machine, for tests.
package etcdtest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Cluster is an etcd whose data end with the test. Its members elect a leader within half a second, unless they are told
// otherwise.
type Cluster struct {
	Members []*Member
}

// Member is a process of a Cluster.
type Member struct {
	Client string // host:port for clients
	Data   string // the folder of what it has
	args   []string
	log    string
	cmd    *exec.Cmd
}

// Start runs an etcd of n members, with more arguments for each, and waits until it answers; the test is skipped where there is none. Clients use scheme, http or https.
func Start(t testing.TB, n int, scheme string, more ...string) *Cluster {
	t.Helper()
	if _, err := exec.LookPath("etcd"); err != nil {
		t.Skip("etcd is missing: apt-get install etcd-server")
	}
	c := &Cluster{}
	dir := t.TempDir()
	var peers, initial []string
	for i := range n {
		peers = append(peers, "http://"+free(t))
		initial = append(initial, fmt.Sprintf("m%d=%s", i, peers[i]))
	}
	for i := range n {
		m := &Member{Client: free(t), Data: filepath.Join(dir, fmt.Sprintf("m%d", i)), log: filepath.Join(dir, fmt.Sprintf("m%d.log", i))}
		m.args = append([]string{
			"--name", fmt.Sprintf("m%d", i), "--data-dir", m.Data,
			"--listen-client-urls", scheme + "://" + m.Client, "--advertise-client-urls", scheme + "://" + m.Client,
			"--listen-peer-urls", peers[i], "--initial-advertise-peer-urls", peers[i], "--initial-cluster", strings.Join(initial, ","),
			"--heartbeat-interval", "50", "--election-timeout", "500", "--log-level", "warn", "--logger", "zap",
		}, more...)
		c.Members = append(c.Members, m)
		m.Start(t)
		t.Cleanup(m.Kill)
	}
	if scheme == "http" {
		c.Ready(t)
	}
	return c
}

// free is a free port.
func free(t testing.TB) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Start runs the member, after a Kill with what it had.
func (m *Member) Start(t testing.TB) {
	t.Helper()
	log, err := os.OpenFile(m.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	m.cmd = exec.Command("etcd", m.args...)
	m.cmd.Stdout, m.cmd.Stderr = log, log
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		t.Fatal(err)
	}
}

// Kill ends the member's process without a warning.
func (m *Member) Kill() {
	if m.cmd != nil {
		_ = m.cmd.Process.Kill()
		_ = m.cmd.Wait()
		m.cmd = nil
	}
}

// Signal sends the member's process a signal.
func (m *Member) Signal(s syscall.Signal) { _ = m.cmd.Process.Signal(s) }

// URL is a store in the cluster.
func (c *Cluster) URL(prefix string) string {
	var all []string
	for _, m := range c.Members {
		all = append(all, m.Client)
	}
	return "etcd://" + strings.Join(all, ",") + "/" + prefix
}

// Connect is a client of the cluster, in plain text.
func (c *Cluster) Connect(t testing.TB) *clientv3.Client {
	t.Helper()
	o := clientv3.Config{Logger: zap.NewNop()}
	for _, m := range c.Members {
		o.Endpoints = append(o.Endpoints, "http://"+m.Client)
	}
	client, err := clientv3.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// Ready waits until the cluster has a leader and answers.
func (c *Cluster) Ready(t testing.TB) {
	t.Helper()
	client := c.Connect(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for {
		try, done := context.WithTimeout(ctx, time.Second)
		_, err := client.Get(try, "ready")
		done()
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			var logs bytes.Buffer
			for _, m := range c.Members {
				b, _ := os.ReadFile(m.log)
				logs.Write(b)
			}
			t.Fatalf("etcd does not answer: %v\n%s", err, logs.Bytes())
		}
	}
}

// Leader is the member that leads the cluster.
func (c *Cluster) Leader(t testing.TB) *Member {
	t.Helper()
	client := c.Connect(t)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		for _, m := range c.Members {
			if m.cmd == nil {
				continue
			}
			try, done := context.WithTimeout(ctx, time.Second)
			st, err := client.Status(try, "http://"+m.Client)
			done()
			if err == nil && st.Leader != 0 && st.Leader == st.Header.MemberId {
				return m
			}
		}
	}
	t.Fatal("no member leads")
	return nil
}

// Follower is a member that does not lead the cluster.
func (c *Cluster) Follower(t testing.TB) *Member {
	t.Helper()
	leads := c.Leader(t)
	for _, m := range c.Members {
		if m != leads && m.cmd != nil {
			return m
		}
	}
	t.Fatal("no member follows")
	return nil
}
