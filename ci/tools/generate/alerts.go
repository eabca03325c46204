package main

import (
	"fmt"
	"os"
	"path/filepath"

	"go.yaml.in/yaml/v3"
)

// alert is one of monitoring/alerts.yaml.
type alert struct {
	Alert     string   `yaml:"alert"`
	Summary   string   `yaml:"summary"`
	Threshold *float64 `yaml:"threshold"`
	// Means says what the threshold counts.
	Means string `yaml:"thresholdMeans"`
}

func readAlerts(dir string) ([]alert, error) {
	text, err := os.ReadFile(filepath.Join(dir, "monitoring", "alerts.yaml"))
	if err != nil {
		return nil, err
	}
	var file struct {
		Alerts []alert `yaml:"alerts"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("read alerts.yaml: %w", err)
	}
	return file.Alerts, nil
}

// alertSettings gives the schema of what the values may say of single alerts.
func (b *schemaBuilder) alertSettings() object {
	properties := object{}
	for _, a := range b.alerts {
		fields := object{
			"enabled":  object{"type": "boolean", "description": "Whether there is such an alert."},
			"severity": object{"type": "string", "pattern": `^[a-z][a-z0-9_-]*$`, "description": "Severity in place of the alert's own."},
			"for": object{
				"type": "string", "pattern": `^([0-9]+(y|w|d|h|m|s|ms))+$`, "examples": []any{"15m"},
				"description": "How long it must be so, as Prometheus writes durations (90m).",
			},
			"labels": object{"type": "object", "additionalProperties": object{"type": "string"}, "description": "More labels of the alert."},
		}
		if a.Threshold != nil {
			fields["threshold"] = object{
				"type": "number", "minimum": 0, "default": *a.Threshold, "description": "Threshold: " + a.Means + ".",
			}
		}
		properties[a.Alert] = object{
			"type": "object", "additionalProperties": false, "properties": fields, "description": "Settings of the alert: " + a.Summary + ".",
		}
	}
	return object{"type": "object", "additionalProperties": false, "properties": properties}
}
