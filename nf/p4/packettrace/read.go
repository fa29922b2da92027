package packettrace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// ErrNone says that the input holds no trace of a packet.
var ErrNone = errors.New("no packet's trace: want a log of simple_switch, a PacketTrace of bmv2, or traces as JSON")

// Read reads traces: this package's JSON, a log of bmv2, or bmv2's PacketTraces. The beginning of the input
// tells which format it has.
func Read(r io.Reader) ([]Trace, error) {
	b := bufio.NewReaderSize(r, 64<<10)
	head, err := b.Peek(4096)
	if err != nil && err != io.EOF && err != bufio.ErrBufferFull {
		return nil, err
	}
	var traces []Trace
	switch head = bytes.TrimLeft(head, " \t\r\n"); {
	case bytes.HasPrefix(head, []byte("{")):
		traces, err = readJSON(b)
	case startsText(head):
		traces, err = readText(b)
	default:
		traces, err = readLog(b)
	}
	if err == nil && len(traces) == 0 {
		err = ErrNone
	}
	return traces, err
}

// readJSON reads a sequence of JSON objects: traces of this package, or PacketTraces.
func readJSON(r io.Reader) ([]Trace, error) {
	var traces []Trace
	d := json.NewDecoder(r)
	for {
		var raw json.RawMessage
		if err := d.Decode(&raw); err == io.EOF {
			return traces, nil
		} else if err != nil {
			return nil, fmt.Errorf("trace %d: %w", len(traces)+1, err)
		}
		var is struct{ Copies, Input, Root json.RawMessage }
		if err := json.Unmarshal(raw, &is); err != nil {
			return nil, fmt.Errorf("trace %d: %w", len(traces)+1, err)
		}
		if is.Copies == nil && (is.Input != nil || is.Root != nil) {
			m, err := messageOf(raw)
			if err != nil {
				return nil, fmt.Errorf("trace %d: %w", len(traces)+1, err)
			}
			traces = append(traces, m.traces()...)
			continue
		}
		if is.Copies == nil {
			return nil, fmt.Errorf("trace %d: %w", len(traces)+1, ErrNone)
		}
		var t Trace
		if err := json.Unmarshal(raw, &t); err != nil {
			return nil, fmt.Errorf("trace %d: %w", len(traces)+1, err)
		}
		traces = append(traces, t)
	}
}

// Write writes traces as JSON, one trace in each line.
func Write(w io.Writer, traces []Trace) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	for _, t := range traces {
		if err := e.Encode(t); err != nil {
			return err
		}
	}
	return nil
}
