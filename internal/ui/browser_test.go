package ui

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// browser is a Chromium without a window. The test speaks its DevTools protocol over pipes.
type browser struct {
	t       *testing.T
	to      io.Writer
	session string

	mu      sync.Mutex
	last    int
	waiting map[int]chan json.RawMessage
	errors  []string // errors on its console
	asked   []string // addresses that it asked for
}

// within is how long a browser may take for each step: emulated machines are slow.
const within = 60 * time.Second

// open starts a browser that looks at url in a window of that size.
func open(t *testing.T, url string, width, height int, dark bool) *browser {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("missing: apt-get install --no-install-recommends chromium")
	}
	theirIn, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	folder, err := os.MkdirTemp("", "ui-browser")
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--disable-background-networking", "--disable-component-update",
		"--disable-sync", "--disable-default-apps", "--user-data-dir=" + folder, fmt.Sprintf("--window-size=%d,%d", width, height), "--remote-debugging-pipe", "about:blank"}
	cmd := exec.Command(path, args...)
	cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	cmd.Env = append(os.Environ(), "HOME="+folder)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	theirIn.Close()
	theirOut.Close()
	b := &browser{t: t, to: in, waiting: map[int]chan json.RawMessage{}}
	ended := make(chan struct{})
	go b.read(bufio.NewReader(out), ended)
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // and its children
		_ = cmd.Wait()
		in.Close()
		out.Close()
		<-ended
		for range 100 { // the children end a little later
			if os.RemoveAll(folder) == nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	var target struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var attached struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.call(domain+".enable", nil, nil)
	}
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
	scheme := "light"
	if dark {
		scheme = "dark"
	}
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []any{map[string]string{"name": "prefers-color-scheme", "value": scheme}}}, nil)
	b.call("Page.navigate", map[string]any{"url": url}, nil)
	return b
}

// read takes answers, and notes the console's lines and the requested addresses. Messages end with a zero
// byte.
func (b *browser) read(in *bufio.Reader, ended chan struct{}) {
	defer close(ended)
	for {
		text, err := in.ReadBytes(0)
		if err != nil {
			return
		}
		var m struct {
			ID     int
			Method string
			Params struct {
				Entry            struct{ Level, Text, URL string }
				Type             string
				Request          struct{ URL string }
				ExceptionDetails json.RawMessage
			}
			Result, Error json.RawMessage
		}
		if json.Unmarshal(text[:len(text)-1], &m) != nil {
			continue
		}
		b.mu.Lock()
		switch {
		case m.ID != 0:
			if m.Error != nil {
				b.errors = append(b.errors, string(m.Error))
			}
			b.waiting[m.ID] <- m.Result
			delete(b.waiting, m.ID)
		case m.Method == "Runtime.exceptionThrown":
			b.errors = append(b.errors, string(m.Params.ExceptionDetails))
		case m.Method == "Runtime.consoleAPICalled" && m.Params.Type == "error":
			b.errors = append(b.errors, string(text))
		case m.Method == "Log.entryAdded" && m.Params.Entry.Level == "error":
			b.errors = append(b.errors, m.Params.Entry.Text+" "+m.Params.Entry.URL)
		case m.Method == "Network.requestWillBeSent":
			b.asked = append(b.asked, m.Params.Request.URL)
		}
		b.mu.Unlock()
	}
}

func (b *browser) call(method string, params, result any) {
	b.t.Helper()
	answer := make(chan json.RawMessage, 1)
	b.mu.Lock()
	b.last++
	id := b.last
	b.waiting[id] = answer
	b.mu.Unlock()
	m := map[string]any{"id": id, "method": method}
	if params != nil {
		m["params"] = params
	}
	if b.session != "" {
		m["sessionId"] = b.session
	}
	text, err := json.Marshal(m)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := b.to.Write(append(text, 0)); err != nil {
		b.t.Fatal(err)
	}
	select {
	case r := <-answer:
		if result != nil {
			if err := json.Unmarshal(r, result); err != nil {
				b.t.Fatalf("%s: %v: %s", method, err, r)
			}
		}
	case <-time.After(within):
		b.t.Fatalf("the browser does not answer %s", method)
	}
}

// eval is the value of an expression in the page, as text.
func (b *browser) eval(expression string) string {
	b.t.Helper()
	var r struct {
		Result struct{ Value any }
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &r)
	return fmt.Sprint(r.Result.Value)
}

// until waits until an expression is true in the page.
func (b *browser) until(expression string) {
	b.t.Helper()
	for end := time.Now().Add(within); ; time.Sleep(20 * time.Millisecond) {
		got := b.eval("Boolean(" + expression + ")")
		if got == "true" {
			return
		}
		if time.Now().After(end) {
			b.t.Fatalf("not so: %s; the page has:\n%s", expression, b.eval("document.body ? document.body.innerText : ''"))
		}
	}
}

// shot saves a picture of the page in the folder that QUILLON_SHOTS names, for a person to look at.
func (b *browser) shot(name string) {
	folder := os.Getenv("QUILLON_SHOTS")
	if folder == "" {
		return
	}
	var r struct{ Data string }
	b.call("Page.captureScreenshot", map[string]any{"format": "png"}, &r)
	png, err := base64.StdEncoding.DecodeString(r.Data)
	if err == nil {
		err = os.WriteFile(folder+"/"+name+".png", png, 0o644)
	}
	if err != nil {
		b.t.Error(err)
	}
}

// clean returns an error if the console has errors, or the page asked another host than host.
func (b *browser) clean(host string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.errors {
		b.t.Errorf("the browser's console: %s", e)
	}
	for _, a := range b.asked {
		if !strings.HasPrefix(a, "http://"+host+"/") && a != "about:blank" && !strings.HasPrefix(a, "data:") {
			b.t.Errorf("the browser asked for %s", a)
		}
	}
}
