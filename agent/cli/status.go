package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/term"
)

// statusLine shares stderr between log lines and one line of progress that is drawn over and over at the bottom.
type statusLine struct {
	mu       sync.Mutex
	w        io.Writer
	terminal bool
	text     string
}

func newStatusLine(w io.Writer) *statusLine {
	f, ok := w.(*os.File)
	return &statusLine{w: w, terminal: ok && term.IsTerminal(int(f.Fd()))}
}

const eraseLine = "\r\x1b[K"

// Write writes whole lines above the status line.
func (s *statusLine) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.text == "" {
		return s.w.Write(p)
	}
	var b bytes.Buffer
	b.WriteString(eraseLine)
	b.Write(p)
	b.WriteString(s.text)
	if _, err := s.w.Write(b.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (s *statusLine) set(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.text = text; s.terminal {
		fmt.Fprint(s.w, eraseLine+text)
	}
}

// clear removes the status line.
func (s *statusLine) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.text != "" {
		fmt.Fprint(s.w, eraseLine)
	}
	s.text = ""
}

// meter turns a count of bytes into a line of progress, a few times a second.
type meter struct {
	mu    sync.Mutex
	what  string
	begin time.Time
	last  time.Time
}

func newMeter(what string) *meter { return &meter{what: what} }

func (m *meter) show(s *statusLine, done, total int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if m.begin.IsZero() {
		m.begin = now
	}
	if now.Sub(m.last) < 200*time.Millisecond && done < total {
		return
	}
	m.last = now
	s.set(m.line(now.Sub(m.begin), done, total))
}

func (m *meter) line(took time.Duration, done, total int64) string {
	text := m.what + " " + humanBytes(done)
	rate := float64(done) / max(took.Seconds(), 0.001)
	if total > done {
		text += fmt.Sprintf(" of %s (%d%%)", humanBytes(total), done*100/total)
	}
	if took > time.Second {
		text += fmt.Sprintf(", %s/s", humanBytes(int64(rate)))
		if left := total - done; left > 0 && rate > 0 {
			text += fmt.Sprintf(", %s left", (time.Duration(float64(left)/rate) * time.Second).Round(time.Second))
		}
	}
	return text
}
