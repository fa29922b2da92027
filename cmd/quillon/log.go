package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/quillon/quillon/nf/clock"
)

// logFlags say what a process logs to stderr while it runs, and in which format.
type logFlags struct{ level, format string }

var logLevels = map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}

func (f *logFlags) add(cmd *cobra.Command) {
	levels := func() []string { return []string{"debug", "info", "warn", "error"} }
	formats := func() []string { return []string{"text", "json"} }
	cmd.Flags().StringVar(&f.level, "log-level", "info", "the least `level` that is told on stderr while it runs: debug, info, warn or error")
	cmd.Flags().StringVar(&f.format, "log-format", "text", "lines for people (`text`), or one of JSON for each event (json)")
	_ = cmd.RegisterFlagCompletionFunc("log-level", completion(levels))
	_ = cmd.RegisterFlagCompletionFunc("log-format", completion(formats))
}

// logger returns a logger that writes to w; JSON lines carry the name of the instance.
func (f *logFlags) logger(w io.Writer, instance string) (*slog.Logger, error) {
	level, ok := logLevels[f.level]
	if !ok {
		return nil, fmt.Errorf("--log-level %s: want debug, info, warn or error", f.level)
	}
	switch f.format {
	case "text":
		return slog.New(&lines{w: w, level: level}), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level})).With("instance", instance), nil
	}
	return nil, fmt.Errorf("--log-format %s: want text or json", f.format)
}

// forPeople returns a logger that writes messages of all levels to w as text.
func forPeople(w io.Writer) *slog.Logger { return slog.New(&lines{w: w}) }

// lines writes messages as commands print them. It leaves out attributes, because the text has their values.
// It prints the time of an event that was seen before it is logged (at).
type lines struct {
	mu    sync.Mutex
	w     io.Writer
	level slog.Level
}

func (l *lines) Enabled(_ context.Context, level slog.Level) bool { return level >= l.level }
func (l *lines) WithAttrs([]slog.Attr) slog.Handler               { return l }
func (l *lines) WithGroup(string) slog.Handler                    { return l }

func (l *lines) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString("quillon: ")
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "at" {
			b.WriteString(a.Value.String() + " ")
		}
		return true
	})
	b.WriteString(r.Message + "\n")
	l.mu.Lock()
	defer l.mu.Unlock()
	_, err := io.WriteString(l.w, b.String())
	return err
}

// at is the time at which an event was seen.
func at(t clock.Time) slog.Attr { return slog.String("at", stamp(t)) }
