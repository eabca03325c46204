package object

import (
	"bufio"
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// kinds.txt has a line "= apiVersion kind message" for each built-in kind, and for each message a line ": name" and one for
// each field: its number, its name in JSON, flags, and its type: a scalar, one of the types that write their JSON in a way
// of their own, or a message.
//
// Flags are those of the Go type, so that what is printed is what the API server would print: i (inline: the fields stand
// among the message's own), m (map with strings as keys), o (omitempty), p (pointer), r (list), w (in a map: a message around
// a list), z (omitzero).
//
//go:embed kinds.txt
var kindsText string

// builtin is all that kinds.txt says.
type builtin struct {
	kinds    map[Type]*message
	messages map[string]*message
}

type message struct {
	fields   []*field // in the order of the Go type
	byNumber map[uint64]*field
}

type field struct {
	number uint64
	name   string
	flags  string
	of     string
	// message is nil for other types.
	message *message
}

// same tells whether two messages have the same fields, all the way down. met are the pairs that are being compared.
func (m *message) same(o *message, met map[[2]*message]bool) bool {
	if m == o || met[[2]*message{m, o}] {
		return true
	}
	met[[2]*message{m, o}] = true
	return slices.EqualFunc(m.fields, o.fields, func(a, b *field) bool {
		if a.name != b.name || a.flags != b.flags || (a.message == nil) != (b.message == nil) {
			return false
		}
		if a.message == nil {
			return a.of == b.of
		}
		return a.message.same(b.message, met)
	})
}

func (f *field) is(flag byte) bool { return strings.IndexByte(f.flags, flag) >= 0 }

// schema parses the text when it is first needed. The text is part of the program, so that a mistake in it is a panic that
// every test shows.
var schema = sync.OnceValue(func() *builtin {
	s := &builtin{kinds: map[Type]*message{}, messages: map[string]*message{}}
	get := func(name string) *message {
		if s.messages[name] == nil {
			s.messages[name] = &message{byNumber: map[uint64]*field{}}
		}
		return s.messages[name]
	}
	var m *message
	for lines := bufio.NewScanner(strings.NewReader(kindsText)); lines.Scan(); {
		w := strings.Fields(lines.Text())
		switch {
		case w[0] == "#":
		case w[0] == "=" && len(w) == 4:
			s.kinds[Type{APIVersion: w[1], Kind: w[2]}] = get(w[3])
		case w[0] == ":" && len(w) == 2:
			m = get(w[1])
		case len(w) == 4:
			number, err := strconv.ParseUint(w[0], 10, 32)
			if err != nil {
				panic(err)
			}
			f := &field{number: number, name: w[1], flags: w[2], of: w[3]}
			if strings.Contains(f.of, ".") {
				f.message = get(f.of)
			}
			m.fields = append(m.fields, f)
			m.byNumber[number] = f
		default:
			panic(fmt.Sprintf("kinds.txt: %q", lines.Text()))
		}
	}
	return s
})

// metaMessage is the ObjectMeta that is the first field of every object.
const metaMessage = "meta/v1.ObjectMeta"
