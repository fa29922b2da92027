package ctl

import (
	"bytes"
	"strconv"
	"strings"
)

// flow writes YAML of one line: {key: value, list: [{a: b}]}.
type flow struct {
	bytes.Buffer
	first bool
}

func (w *flow) comma() {
	if !w.first {
		w.WriteString(", ")
	}
	w.first = false
}

func (w *flow) key(k string) {
	w.comma()
	w.WriteString(quoted(k))
	w.WriteString(": ")
}

// start opens the outermost map.
func (w *flow) start() { w.WriteByte('{'); w.first = true }

// item opens a map in a list, open a map after a key; close ends either.
func (w *flow) item()         { w.comma(); w.WriteByte('{'); w.first = true }
func (w *flow) open(k string) { w.key(k); w.WriteByte('{'); w.first = true }
func (w *flow) close()        { w.WriteByte('}'); w.first = false }

// list opens a list after a key; end ends it.
func (w *flow) list(k string) { w.key(k); w.WriteByte('['); w.first = true }
func (w *flow) end()          { w.WriteByte(']'); w.first = false }

func (w *flow) text(k, v string)      { w.key(k); w.WriteString(quoted(v)) }
func (w *flow) int(k string, v int64) { w.key(k); w.digits(v) }
func (w *flow) number(v int64)        { w.comma(); w.digits(v) }
func (w *flow) digits(v int64)        { w.Write(strconv.AppendInt(w.AvailableBuffer(), v, 10)) }

// quoted returns s as YAML: in quotes unless it is plainly a word or a number.
func quoted(s string) string {
	plain := s != "" && s != "null" && !strings.HasPrefix(s, "-")
	for _, c := range []byte(s) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '.', c == '_', c == '-', c == '/':
		default:
			plain = false
		}
	}
	if plain {
		return s
	}
	return strconv.Quote(s)
}
