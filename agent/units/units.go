// Package units words quantities for people, and keeps texts short.
package units

import (
	"fmt"
	"strings"
)

// Bytes gives a size in binary units: 12.3 MiB.
func Bytes(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	v, names := float64(n)/1024, []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	for v >= 1023.95 && len(names) > 1 {
		v, names = v/1024, names[1:]
	}
	return fmt.Sprintf("%.1f %s", v, names[0])
}

// Shorten cuts a text to at most limit bytes, between two characters.
func Shorten(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	const more = " ..."
	return strings.ToValidUTF8(text[:limit-len(more)], "") + more
}
