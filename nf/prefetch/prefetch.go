// Package prefetch has the processor fetch memory before it is needed. Loading
// does so, too, but the processor waits for what it loaded before it goes far
// beyond.
package prefetch
