// Package swordbox shares connections and replaces atomics.
package swordbox

const doc = ``
