// Package docs checks the documents: their links lead somewhere, their commands exist and are accounted for, and the
// translated ones say as much as those that they translate.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Page is what the checks need of one Markdown file.
type Page struct {
	// File is its path from the repository's root.
	File   string
	Blocks []Block

	headings []heading
	links    []link
	// shape is one letter for each thing on it, in order: headings as the digit of their level, p a paragraph, l an item of
	// a list, t a row of a table, c a block of code, q a quotation.
	shape string
}

type heading struct {
	line   int
	anchor string
}

type link struct {
	line   int
	target string
}

// Block is a fenced block of code.
type Block struct {
	Line           int
	Language, Text string
	// before is the HTML comment on the line before it, without its marks.
	before string
}

// RunBy are the tests that run its commands, as the comment before it says.
func (b Block) RunBy() []string {
	names, ok := strings.CutPrefix(b.before, "run by ")
	if !ok {
		return nil
	}
	return strings.Split(names, ", ")
}

var (
	linkPattern    = regexp.MustCompile(`\]\(([^()\s]+)\)`)
	commentPattern = regexp.MustCompile(`^<!-- (.*) -->$`)
	codePattern    = regexp.MustCompile("`[^`]*`")
	itemPattern    = regexp.MustCompile(`^\s*([-*]|\d+\.) `)
)

// Pages reads all of the repository's Markdown that people read.
func Pages(root string) ([]Page, error) {
	var found []Page
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if slices.Contains([]string{".git", "bin", "dist", ".demo", "testdata", "node_modules"}, d.Name()) {
				return filepath.SkipDir
			}
			return nil
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		found = append(found, parse(file, string(text)))
		return nil
	})
	return found, err
}

// parse reads the Markdown that this repository writes: headings with #, fences with three backticks.
func parse(file, text string) Page {
	p := Page{File: file}
	var (
		open            *Block
		comment         string
		paragraph, list bool
		seen            = map[string]int{}
	)
	for i, line := range strings.Split(text, "\n") {
		line = strings.TrimRight(line, " ")
		trimmed := strings.TrimLeft(line, " ")
		if open != nil {
			if trimmed == "```" {
				p.Blocks, open = append(p.Blocks, *open), nil
			} else {
				open.Text += line + "\n"
			}
			continue
		}
		was := comment
		comment = ""
		wasParagraph := paragraph
		paragraph = false
		switch {
		case strings.HasPrefix(trimmed, "```"):
			open = &Block{Line: i + 1, Language: strings.TrimLeft(trimmed, "`"), before: was}
			p.shape += "c"
			continue
		case line == "":
			list = false
			continue
		case commentPattern.MatchString(trimmed):
			comment = commentPattern.FindStringSubmatch(trimmed)[1]
			continue
		case strings.HasPrefix(line, "#"):
			level := len(line) - len(strings.TrimLeft(line, "#"))
			anchor := slug(strings.TrimSpace(line[level:]))
			n := seen[anchor]
			seen[anchor]++
			if n > 0 {
				anchor += "-" + string(rune('0'+n))
			}
			p.headings = append(p.headings, heading{i + 1, anchor})
			p.shape += string(rune('0' + level))
		case strings.HasPrefix(line, "|"):
			p.shape += "t"
		case itemPattern.MatchString(line):
			p.shape += "l"
			list = true
		case strings.HasPrefix(line, ">"):
			p.shape += "q"
		case !wasParagraph && !list:
			p.shape += "p"
			paragraph = true
		default:
			paragraph = !list
		}
		for _, m := range linkPattern.FindAllStringSubmatch(codePattern.ReplaceAllString(line, ""), -1) {
			p.links = append(p.links, link{i + 1, m[1]})
		}
	}
	return p
}

// slug is the anchor that GitHub gives a heading.
func slug(title string) string {
	var b strings.Builder
	for _, r := range strings.ToLower(title) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r > 0x7f && !strings.ContainsRune("，。：？！、（）“”—…·→", r):
			b.WriteRune(r)
		}
	}
	return b.String()
}
