package charts

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/stretchr/testify/require"
)

// The dashboard is one by Grafana's own schema: no field that it does not know, down to panels' options and queries.
func TestDashboardSchema(t *testing.T) {
	t.Parallel()
	plugins.RegisterDefaultPlugins()
	source := chartFile(t, "monitoring/dashboard.json")
	//nolint:staticcheck // the schema of version 1, which every Grafana in use reads
	var d dashboard.Dashboard
	require.Empty(t, complaint(d.UnmarshalJSONStrict(source)))
	require.Empty(t, complaint(d.Validate()))
	// It looks at everything: a misspelt field of a panel, of its options and of a query is found.
	for _, field := range []string{"gridPos", "graphMode", "legendFormat"} {
		broken := strings.Replace(string(source), `"`+field+`"`, `"misspelt"`, 1)
		//nolint:staticcheck // see above
		require.Contains(t, complaint(new(dashboard.Dashboard).UnmarshalJSONStrict([]byte(broken))), "misspelt")
	}
	var plainDashboard struct {
		Panels []struct {
			ID          int
			Title, Type string
			Description string
			GridPos     struct{ X, Y, W, H int }
		}
	}
	require.NoError(t, json.Unmarshal(source, &plainDashboard))
	ids, taken := map[int]bool{}, map[[2]int]string{}
	for _, p := range plainDashboard.Panels {
		require.False(t, ids[p.ID], "two panels have the ID %d", p.ID)
		ids[p.ID] = true
		if p.Type != "row" {
			require.NotEmpty(t, p.Description, "%s explains nothing", p.Title)
		}
		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				require.Empty(t, taken[[2]int{x, y}], "%s lies on another panel", p.Title)
				taken[[2]int{x, y}] = p.Title
			}
		}
	}
}

// complaint is what an error says. The schema's reader gives an error that lists nothing where nothing is wrong.
func complaint(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// The ConfigMap holds the dashboard as it is, under the label that the sidecar looks for.
func TestDashboardConfigMap(t *testing.T) {
	t.Parallel()
	m := render(t, rendering{set: []string{"monitoring.dashboard.enabled=true", "monitoring.dashboard.folder=Backup"}}).configMap(t, "-dashboard")
	require.Equal(t, "1", m.Labels["grafana_dashboard"])
	require.Equal(t, map[string]string{"grafana_folder": "Backup"}, m.Annotations)
	require.JSONEq(t, string(chartFile(t, "monitoring/dashboard.json")), m.Data["etcd-snapshot.json"])
	other := render(t, rendering{set: []string{"monitoring.dashboard.enabled=true", "monitoring.dashboard.labels.grafana_dashboard=etcd"}})
	require.Equal(t, "etcd", other.configMap(t, "-dashboard").Labels["grafana_dashboard"])
}
