// Package pictures draws what a command printed in a real run as a terminal shows it, for the documents.
package pictures

import (
	"fmt"
	"html"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"unicode/utf8"
)

// File is the path of a picture in docs/pictures.
func File(name string) string {
	_, here, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(here), "..", "..", "docs", "pictures", name)
}

// columns is how wide a terminal may be: more cannot be read on a page.
const columns = 150

// DrawTerminal writes the SVG file of docs/pictures that shows a command and what it printed. Longer lines are cut.
// Any font that is monospaced will do: each line is as wide as it says.
func DrawTerminal(name, command, output string) error {
	const cell, height, margin = 7.8, 20, 16
	lines := append([]string{"$ " + command}, strings.Split(strings.TrimRight(output, "\n"), "\n")...)
	widest := 0
	for i, l := range lines {
		if r := []rune(l); len(r) > columns {
			lines[i] = string(r[:columns-1]) + "…"
		}
		widest = max(widest, utf8.RuneCountInString(lines[i]))
	}
	width, total := int(float64(widest)*cell)+2*margin, (len(lines)+1)*height+2*margin
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-labelledby="title desc">`+"\n", width, total, width, total)
	fmt.Fprintf(&b, "<title id=\"title\">%s</title>\n<desc id=\"desc\">What the command printed in a real run.</desc>\n", html.EscapeString(command))
	fmt.Fprintf(&b, `<rect width="%d" height="%d" rx="8" fill="#1b1f27" stroke="#57606a"/>`+"\n", width, total)
	for i, colour := range []string{"#ff5f57", "#febc2e", "#28c840"} {
		fmt.Fprintf(&b, `<circle cx="%d" cy="18" r="5" fill="%s"/>`+"\n", 20+i*18, colour)
	}
	b.WriteString(`<g font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace" font-size="13" fill="#e6edf3">` + "\n")
	for i, l := range lines {
		l = strings.TrimRight(l, " ")
		if l == "" {
			continue
		}
		fill := ""
		if i == 0 {
			fill = ` fill="#7ee787"`
		}
		fmt.Fprintf(&b, `<text x="%d" y="%d" textLength="%.1f" xml:space="preserve"%s>%s</text>`+"\n", margin, margin+(i+2)*height-6, float64(utf8.RuneCountInString(l))*cell, fill, html.EscapeString(l))
	}
	b.WriteString("</g>\n</svg>\n")
	if err := os.MkdirAll(filepath.Dir(File(name)), 0o755); err != nil {
		return err
	}
	return os.WriteFile(File(name), []byte(b.String()), 0o644)
}

// TerminalLines gives the lines of a picture that DrawTerminal made, the command first.
func TerminalLines(name string) (lines []string, err error) {
	data, err := os.ReadFile(File(name))
	if err != nil {
		return nil, err
	}
	for l := range strings.SplitSeq(string(data), "\n") {
		if text, ok := strings.CutSuffix(l, "</text>"); ok {
			lines = append(lines, html.UnescapeString(text[strings.Index(text, ">")+1:]))
		}
	}
	return lines, nil
}
