package notify

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	v1 "etcdsnapshot.dev/agent/api/v1"
	"etcdsnapshot.dev/agent/units"
)

const (
	applicationJSON = "application/json"
	textPlain       = "text/plain; charset=utf-8"
)

// maxMessage bounds the message in the forms for people, in bytes. Slack cuts a text after 4000 characters, a workflow of
// Teams refuses a body above 28 KiB.
const maxMessage = 2048

// format gives the body of a webhook.
func format(form string, n *v1.Notice) ([]byte, error) {
	var body any
	switch form {
	case v1.WebhookSlack:
		body = slack(n)
	case v1.WebhookTeams:
		body = teams(n)
	default:
		body = n
	}
	return json.Marshal(body)
}

// fact is a line of what is told to people.
type fact struct{ name, value string }

// facts are those that say which cluster this is about and how bad it is.
func facts(n *v1.Notice) (all []fact) {
	add := func(name, value string) {
		if value != "" {
			all = append(all, fact{name, value})
		}
	}
	policy := n.Policy.Name
	if n.Policy.Namespace != "" {
		policy = n.Policy.Namespace + "/" + policy
	}
	add("Cluster", n.ClusterName)
	add("Policy", policy)
	add("Node", n.Node)
	add("Began", n.StartTime.UTC().Format(time.RFC3339)+", took "+n.EndTime.Sub(n.StartTime.Time).Round(time.Second).String())
	if n.ConsecutiveFailures != nil && *n.ConsecutiveFailures > 0 {
		add("Failures in a row", fmt.Sprint(*n.ConsecutiveFailures))
	}
	if n.LastSuccessTime != nil {
		add("Last success", n.LastSuccessTime.UTC().Format(time.RFC3339))
	}
	if s := n.Snapshot; s != nil {
		add("Snapshot", fmt.Sprintf("%s, revision %d, %s", s.Name, s.Revision, units.Bytes(s.StoredBytes)))
		var ends []string
		for _, d := range s.Destinations {
			ends = append(ends, d.Name+": "+strings.ToLower(d.Result))
		}
		add("Destinations", strings.Join(ends, ", "))
	}
	if v := n.Verification; v != nil {
		add("Verified", fmt.Sprintf("at level %s: %d passed, %d corrupt, %d could not be checked", v.Level, v.Passed, v.Failed, v.Unknown))
	}
	return all
}

// reasons are the message and the diagnosis.
func reasons(n *v1.Notice) string {
	text := n.Message
	for _, d := range n.Diagnosis {
		text += "\n" + d
	}
	return units.Shorten(strings.TrimSpace(text), maxMessage)
}

// text is the notice for people, as plain text.
func text(n *v1.Notice) string {
	var b strings.Builder
	fmt.Fprintln(&b, n.Summary)
	for _, f := range facts(n) {
		fmt.Fprintf(&b, "%s: %s\n", f.name, f.value)
	}
	if why := reasons(n); why != "" {
		fmt.Fprintf(&b, "\n%s\n", why)
	}
	return b.String()
}

// slackEscapes are the characters that mean something to Slack, with which a text could call for everybody's attention.
var slackEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// slack gives the one field that every service which takes Slack's webhooks knows.
func slack(n *v1.Notice) any {
	var b strings.Builder
	fmt.Fprintf(&b, "%s *%s*\n", map[string]string{"good": ":white_check_mark:", "warning": ":warning:", "attention": ":rotating_light:", "default": ":information_source:"}[colour(n)], slackEscapes.Replace(n.Summary))
	for _, f := range facts(n) {
		fmt.Fprintf(&b, "%s: %s\n", f.name, slackEscapes.Replace(f.value))
	}
	if why := reasons(n); why != "" {
		fmt.Fprintf(&b, "```%s```", slackEscapes.Replace(strings.ReplaceAll(why, "```", "'''")))
	}
	return map[string]string{"text": b.String()}
}

// colour is how bad it is, in the words of Adaptive Cards.
func colour(n *v1.Notice) string {
	switch n.Event {
	case v1.EventSucceeded, v1.EventRecovered:
		return "good"
	case v1.EventPartial:
		return "warning"
	case v1.EventTest:
		return "default"
	}
	return "attention"
}

type (
	teamsMessage struct {
		Type        string            `json:"type"`
		Attachments []teamsAttachment `json:"attachments"`
	}
	teamsAttachment struct {
		ContentType string       `json:"contentType"`
		Content     adaptiveCard `json:"content"`
	}
	adaptiveCard struct {
		Schema  string            `json:"$schema"`
		Type    string            `json:"type"`
		Version string            `json:"version"`
		Body    []any             `json:"body"`
		Teams   map[string]string `json:"msteams"`
	}
	textBlock struct {
		Type   string `json:"type"`
		Text   string `json:"text"`
		Weight string `json:"weight"`
		Size   string `json:"size"`
		Color  string `json:"color"`
		Wrap   bool   `json:"wrap"`
	}
	factSet struct {
		Type  string     `json:"type"`
		Facts []cardFact `json:"facts"`
	}
	cardFact struct {
		Title string `json:"title"`
		Value string `json:"value"`
	}
	richTextBlock struct {
		Type    string    `json:"type"`
		Inlines []textRun `json:"inlines"`
	}
	textRun struct {
		Type     string `json:"type"`
		Text     string `json:"text"`
		FontType string `json:"fontType"`
	}
)

// teams gives the message that the workflow "When a Teams webhook request is received" posts: an Adaptive Card. Its parts
// are of version 1.2, which every client of Teams shows.
func teams(n *v1.Notice) any {
	var set []cardFact
	for _, f := range facts(n) {
		set = append(set, cardFact{f.name, f.value})
	}
	body := []any{
		textBlock{Type: "TextBlock", Text: n.Summary, Weight: "bolder", Size: "medium", Color: colour(n), Wrap: true},
		factSet{Type: "FactSet", Facts: set},
	}
	if why := reasons(n); why != "" {
		// Not a TextBlock, which would read an error as Markdown.
		body = append(body, richTextBlock{Type: "RichTextBlock", Inlines: []textRun{{Type: "TextRun", Text: why, FontType: "monospace"}}})
	}
	return teamsMessage{Type: "message", Attachments: []teamsAttachment{{
		ContentType: "application/vnd.microsoft.card.adaptive",
		Content: adaptiveCard{Schema: "http://adaptivecards.io/schemas/adaptive-card.json", Type: "AdaptiveCard", Version: "1.2", Body: body,
			Teams: map[string]string{"width": "Full"}},
	}}}
}
