package cli

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHumanBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 1<<20 - 1: "1.0 MiB", 1 << 20: "1.0 MiB", 8 << 30: "8.0 GiB", 1 << 62: "4.0 EiB"} {
		require.Equal(t, want, humanBytes(n))
	}
}

func TestHumanAge(t *testing.T) {
	for d, want := range map[time.Duration]string{-time.Second: "in the future", 0: "0s", 90 * time.Second: "90s", 5 * time.Minute: "5m", 3 * time.Hour: "3h", 47 * time.Hour: "47h", 49 * time.Hour: "2d"} {
		require.Equal(t, want, humanAge(d))
	}
}

// TestStatusLine: log lines go above the progress line, which is drawn again below them.
func TestStatusLine(t *testing.T) {
	var out bytes.Buffer
	s := &statusLine{w: &out, terminal: true}
	s.set("half way")
	_, err := s.Write([]byte("a log line\n"))
	require.NoError(t, err)
	s.clear()
	_, err = s.Write([]byte("the end\n"))
	require.NoError(t, err)
	require.Equal(t, eraseLine+"half way"+eraseLine+"a log line\nhalf way"+eraseLine+"the end\n", out.String())
}

func TestMeter(t *testing.T) {
	m := newMeter("streaming")
	require.Equal(t, "streaming 10.0 MiB of 40.0 MiB (25%), 5.0 MiB/s, 6s left", m.line(2*time.Second, 10<<20, 40<<20))
	require.Equal(t, "streaming 40.0 MiB, 5.0 MiB/s", m.line(8*time.Second, 40<<20, 40<<20))
	require.Equal(t, "streaming 1.0 MiB of 40.0 MiB (2%)", m.line(time.Second/2, 1<<20, 40<<20))
}

func TestOneLine(t *testing.T) {
	require.Equal(t, "a b c", oneLine(errors.New("a\n\tb  c\n")))
}
