package charts

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

func defaults(t testing.TB) map[string]any {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(chartDir, "values.yaml"))
	require.NoError(t, err)
	var v map[string]any
	require.NoError(t, yaml.UnmarshalStrict(data, &v))
	return v
}

// leaves gives the paths of the values that are documented each by itself, with their defaults.
func leaves(values map[string]any, prefix string, out map[string]any) map[string]any {
	for k, v := range values {
		path := prefix + k
		if m, ok := v.(map[string]any); ok && len(m) > 0 && path != "destinations" && path != "notifications" && !strings.HasPrefix(strings.TrimPrefix(path, "verification."), "resources.") {
			leaves(m, path+".", out)
			continue
		}
		out[path] = v
	}
	return out
}

// Every documented value does something: another value than the default changes what is rendered.
func TestEveryDocumentedValueIsUsed(t *testing.T) {
	t.Parallel()
	var other map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(scenarios(t)["everything"]), &other))
	base := render(t, rendering{})
	for path, fallback := range leaves(defaults(t), "", map[string]any{}) {
		if path == "global" {
			continue
		}
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			// The value of the scenario "everything", or the other one of two.
			var v any = other
			for key := range strings.SplitSeq(path, ".") {
				m, ok := v.(map[string]any)
				require.True(t, ok, "ci/everything-values.yaml does not reach %s", path)
				v = m[key]
			}
			if b, ok := fallback.(bool); ok {
				v = !b
			}
			set := map[string]any{}
			at := set
			keys := strings.Split(path, ".")
			for _, key := range keys[:len(keys)-1] {
				next := map[string]any{}
				at[key], at = next, next
			}
			at[keys[len(keys)-1]] = v
			with := ""
			switch path { // what the value has an effect with
			case "nodeCount":
				set["nodes"] = "all"
				set["nodeCount"] = 2
				with = "{nodes: all, nodeCount: 3}"
			case "nodes":
				set["nodeCount"] = 1
			case "verification.level", "verification.since", "verification.identitySecret", "verification.scratchSizeLimit",
				"verification.resources.requests", "verification.resources.limits":
				set["verification"].(map[string]any)["schedule"] = "@daily"
				with = "{verification: {schedule: '@daily'}}"
			case "extras.enabled", "extras.paths", "extras.additionalPaths", "extras.encryption", "extras.destinations":
				at["enabled"] = true
				set["encryption"] = other["encryption"]
				recipients, err := json.Marshal(other["encryption"])
				require.NoError(t, err)
				with = "{extras: {enabled: " + strconv.FormatBool(path != "extras.enabled") + "}, encryption: " + string(recipients) + "}"
			case "etcd.existingSecret":
				at["existingSecret"] = "mine"
			case "monitoring.kubeStateMetrics.configMap.labels", "monitoring.prometheusRule.labels", "monitoring.prometheusRule.annotations",
				"monitoring.prometheusRule.runbookURL", "monitoring.prometheusRule.alerts",
				"monitoring.dashboard.labels", "monitoring.dashboard.annotations", "monitoring.dashboard.folder":
				at["enabled"] = true
				with = "{monitoring: {" + keys[1] + ": {enabled: true}}}"
				if keys[1] == "kubeStateMetrics" {
					with = "{monitoring: {kubeStateMetrics: {configMap: {enabled: true}}}}"
				}
			case "monitoring.kubeStateMetrics.serviceAccount.namespace":
				at["name"] = "ksm"
				with = "{monitoring: {kubeStateMetrics: {serviceAccount: {name: ksm}}}}"
			}
			before := base
			if with != "" {
				before = render(t, rendering{values: with})
			}
			data, err := json.Marshal(set)
			require.NoError(t, err)
			after := render(t, rendering{values: string(data)})
			require.NotEqual(t, before.manifest+before.release.Info.Notes, after.manifest+after.release.Info.Notes,
				"%s=%v changes nothing", path, v)
		})
	}
}

// The scenario "everything" sets everything, so that the tests above and chart checkers see every branch.
func TestScenarioEverythingSetsEverything(t *testing.T) {
	t.Parallel()
	var set map[string]any
	require.NoError(t, yaml.Unmarshal([]byte(scenarios(t)["everything"]), &set))
	given := leaves(set, "", map[string]any{})
	for path := range leaves(defaults(t), "", map[string]any{}) {
		switch path {
		case "global", "etcd.existingSecret":
			continue
		case "encryption":
			path = "encryption.age.recipients"
		}
		parent := func(p string) bool { return strings.HasPrefix(p, path+".") || p == path }
		found := false
		for p := range given {
			found = found || parent(p)
		}
		require.True(t, found, "%s is not set in ci/everything-values.yaml", path)
	}
}

// Every value that a template reads is documented.
func TestEveryUsedValueIsDocumented(t *testing.T) {
	t.Parallel()
	var known []string
	for _, n := range nodes(t) {
		known = append(known, strings.ReplaceAll(n.String(), "/", "."))
	}
	used := regexp.MustCompile(`(?:\.Values|\$config)\.([A-Za-z]+(?:\)?\.[A-Za-z]+)*)`)
	files, err := filepath.Glob(filepath.Join(chartDir, "templates", "*"))
	require.NoError(t, err)
	count := 0
	for _, f := range files {
		if info, err := os.Stat(f); err != nil || info.IsDir() {
			continue
		}
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		for _, m := range used.FindAllStringSubmatch(string(text), -1) {
			count++
			path := strings.ReplaceAll(m[1], ")", "")
			require.True(t, slices.Contains(known, path), "%s reads .Values.%s, which values.yaml does not document", f, path)
		}
	}
	require.Greater(t, count, 80)
}

// The tables in the README name every value.
func TestReadmeListsEveryValue(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join(chartDir, "README.md"))
	require.NoError(t, err)
	for path := range leaves(defaults(t), "", map[string]any{}) {
		require.Contains(t, string(text), "| `"+path+"` |")
	}
	for _, n := range nodes(t) {
		if field, ok := strings.CutPrefix(n.String(), "destinations/*/"); ok && n.schema["properties"] == nil && !strings.Contains(field, "*") {
			require.Contains(t, string(text), "| `"+strings.ReplaceAll(field, "/", ".")+"` |")
		}
	}
	for _, n := range nodes(t) {
		if field, ok := strings.CutPrefix(n.String(), "notifications/*/"); ok && n.schema["properties"] == nil && !strings.HasSuffix(field, "/0") {
			require.Contains(t, string(text), "| `"+strings.ReplaceAll(field, "/", ".")+"` |")
		}
	}
	for name := range readPresets(t).Distributions {
		require.Contains(t, string(text), "| `"+name+"` |")
	}
}
