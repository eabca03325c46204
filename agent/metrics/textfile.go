package metrics

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// write puts the metrics into the folder of node-exporter's textfile collector, which never sees half a file.
func (s *Source) write(directory string) error {
	name := filepath.Join(directory, "etcd-snapshot_"+s.Policy.Namespace+"_"+s.Policy.Name+".prom")
	now, err := s.registry(s.identity()).Gather()
	if err != nil {
		return err
	}
	if !s.Complete {
		before, err := read(name)
		if err != nil {
			return err
		}
		now = s.keep(now, before)
	}
	if err := prometheus.WriteToTextfile(name, prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return now, nil })); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("%w (directory must be there: it is the one that node-exporter reads)", err)
		}
		return err
	}
	return nil
}

// read gives what an earlier run wrote. What is no metrics is nothing.
func read(name string) (map[string]*dto.MetricFamily, error) {
	f, err := os.Open(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(f)
	if err != nil {
		return nil, nil // it is written anew
	}
	return families, nil
}

// keep adds to what is known now what is only known from before: of metrics that this run says nothing of, and of
// destinations and levels of verification that it says nothing of.
func (s *Source) keep(now []*dto.MetricFamily, before map[string]*dto.MetricFamily) []*dto.MetricFamily {
	for name, old := range before {
		i := slices.IndexFunc(now, func(f *dto.MetricFamily) bool { return f.GetName() == name })
		var known []*dto.Metric
		if i >= 0 {
			known = now[i].Metric
		}
		var kept []*dto.Metric
		for _, m := range old.Metric {
			if s.gone(m) {
				continue
			}
			if i < 0 || !told(known, m) {
				kept = append(kept, m)
			}
		}
		switch {
		case len(kept) == 0:
		case i < 0:
			old.Metric = kept
			now = append(now, old)
		default:
			now[i].Metric = append(now[i].Metric, kept...)
		}
	}
	slices.SortFunc(now, func(a, b *dto.MetricFamily) int {
		return strings.Compare(a.GetName(), b.GetName())
	})
	return now
}

// gone says that a metric is of a destination that the policy does not have any more.
func (s *Source) gone(m *dto.Metric) bool {
	name, ok := label(m, "destination")
	return ok && !slices.Contains(s.Destinations, name)
}

// told says that this run knows about what m is about: of metrics per destination or level, about that one.
func told(known []*dto.Metric, m *dto.Metric) bool {
	for _, by := range []string{"destination", "level"} {
		if about, ok := label(m, by); ok {
			return slices.ContainsFunc(known, func(k *dto.Metric) bool {
				now, _ := label(k, by)
				return now == about
			})
		}
	}
	return true
}

func label(m *dto.Metric, name string) (string, bool) {
	for _, l := range m.Label {
		if l.GetName() == name {
			return l.GetValue(), true
		}
	}
	return "", false
}
