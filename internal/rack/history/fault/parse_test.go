package fault

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

var errForm = errors.New(`want "drop LINK up|down FRAME", "duplicate|delay LINK up|down FRAME by TIME", "corrupt LINK up|down FRAME byte N" or "kill|restart MACHINE at TIME"`)

// Parse reads what String writes. Empty lines are skipped.
func Parse(text string) (Schedule, error) {
	var s Schedule
	for i, line := range strings.Split(text, "\n") {
		if strings.TrimSpace(line) == "" {
			continue
		}
		f, err := parse(strings.Fields(line))
		if err != nil {
			return nil, fmt.Errorf("fault: line %d, %q: %w", i+1, line, err)
		}
		s = append(s, f)
	}
	return s, nil
}

func parse(w []string) (Fault, error) {
	var f Fault
	for f.Action = 0; f.Action < numActions && f.Action.String() != w[0]; f.Action++ {
	}
	want := 6
	switch f.Action {
	case Drop, Kill, Restart:
		want = 4
	case numActions:
		return f, errForm
	}
	if len(w) != want {
		return f, errForm
	}
	f.Where = w[1]
	if !f.Action.OfFrame() {
		at, err := time.ParseDuration(w[3])
		if err != nil || w[2] != "at" || at < 0 {
			return f, errForm
		}
		f.At = at
		return f, nil
	}
	switch w[2] {
	case "up":
	case "down":
		f.Dir = Down
	default:
		return f, errForm
	}
	if err := number(w[3], &f.Frame); err != nil || f.Frame < 1 {
		return f, errForm
	}
	switch f.Action {
	case Duplicate, Delay:
		by, err := time.ParseDuration(w[5])
		if err != nil || w[4] != "by" || by < 0 {
			return f, errForm
		}
		f.By = by
	case Corrupt:
		if err := number(w[5], &f.Byte); err != nil || w[4] != "byte" {
			return f, errForm
		}
	}
	return f, nil
}

// number reads a plain decimal number below 2^31.
func number(s string, n *int) error {
	if s == "" || len(s) > 9 {
		return errForm
	}
	*n = 0
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return errForm
		}
		*n = *n*10 + int(c-'0')
	}
	return nil
}
