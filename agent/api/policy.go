// Package api reads and checks objects of the API group etcdsnapshot.dev outside an API server, by the very rules
// that the API server uses: the CRDs in crds/ (generated from package v1) with their structural schema, defaults
// and CEL rules. There is no second, hand-written copy of a rule.
package api

import (
	"bufio"
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"sort"
	"strings"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	v1 "etcdsnapshot.dev/agent/api/v1"
)

//go:embed crds/*.yaml
var crds embed.FS

// CRD gives the CustomResourceDefinition of a resource (its plural name) as YAML.
func CRD(resource string) ([]byte, error) { return crds.ReadFile("crds/" + resource + ".yaml") }

// secretKey matches an age identity that somebody took for a recipient.
var secretKey = regexp.MustCompile(`(?i)AGE-SECRET-KEY-[0-9A-Z-]*`)

// maxPolicyBytes bounds what is read as a policy: the API server's own limit of a request.
const maxPolicyBytes = 3 << 20

// InvalidError says what is wrong with an object, one reason a field, each beginning with the field's path.
type InvalidError struct {
	// Source is where the object came from: a file's name or a resource's.
	Source string
	// Reasons are sorted.
	Reasons []string
}

func (e *InvalidError) Error() string {
	if len(e.Reasons) == 1 {
		return fmt.Sprintf("policy in %s is not valid: %s", e.Source, e.Reasons[0])
	}
	return fmt.Sprintf("policy in %s is not valid:\n  - %s", e.Source, strings.Join(e.Reasons, "\n  - "))
}

// LoadPolicy reads a policy from a file; "-" is standard input.
func LoadPolicy(path string, stdin io.Reader) (*v1.EtcdSnapshotPolicy, error) {
	r, source := stdin, "standard input"
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("read policy file: %w", err)
		}
		defer f.Close()
		r, source = f, path
	}
	data, err := io.ReadAll(io.LimitReader(r, maxPolicyBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read policy from %s: %w", source, err)
	}
	if len(data) > maxPolicyBytes {
		return nil, &InvalidError{Source: source, Reasons: []string{fmt.Sprintf("larger than %d bytes", maxPolicyBytes)}}
	}
	return parse(data, source)
}

// ParsePolicy checks a manifest (YAML or JSON, one document) as the API server would, refuses unknown and doubled
// fields, and fills in the defaults. The error is an *InvalidError.
func ParsePolicy(data []byte) (*v1.EtcdSnapshotPolicy, error) { return parse(data, "the manifest") }

func parse(data []byte, source string) (*v1.EtcdSnapshotPolicy, error) {
	doc, err := onlyDocument(data)
	if err != nil {
		return nil, &InvalidError{Source: source, Reasons: []string{err.Error()}}
	}
	raw, err := yaml.YAMLToJSONStrict(doc)
	if err != nil {
		return nil, &InvalidError{Source: source, Reasons: []string{err.Error()}}
	}
	// Kubernetes' decoder keeps whole numbers whole, as the API server does.
	obj := map[string]any{}
	if err := json.UnmarshalCaseSensitivePreserveInts(raw, &obj); err != nil {
		return nil, &InvalidError{Source: source, Reasons: []string{err.Error()}}
	}
	return check(obj, source)
}

// CheckObject validates a policy that came from elsewhere, such as an API server whose CRD may be older or newer, as
// ParsePolicy does. It fills the defaults into obj. source says where it came from.
func CheckObject(obj map[string]any, source string) (*v1.EtcdSnapshotPolicy, error) {
	return check(obj, source)
}

func check(obj map[string]any, source string) (*v1.EtcdSnapshotPolicy, error) {
	invalid := func(reasons ...string) error {
		for i, r := range reasons {
			reasons[i] = secretKey.ReplaceAllString(r, "(a secret key, not shown: name the public key that age-keygen -y prints)")
		}
		sort.Strings(reasons)
		return &InvalidError{Source: source, Reasons: reasons}
	}
	if got, want := obj["apiVersion"], v1.GroupVersion.String(); got != want {
		return nil, invalid(fmt.Sprintf("apiVersion: is %s, must be %s", orMissing(got), want))
	}
	if got := obj["kind"]; got != v1.PolicyKind {
		return nil, invalid(fmt.Sprintf("kind: is %s, must be %s", orMissing(got), v1.PolicyKind))
	}
	var policy v1.EtcdSnapshotPolicy
	err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(obj, &policy, true)
	if unknown, ok := runtime.AsStrictDecodingError(err); ok {
		var reasons []string
		for _, e := range unknown.Errors() {
			// Nobody writes a status by hand: what is unknown there is of a newer agent.
			if !strings.HasPrefix(e.Error(), `unknown field "status.`) {
				reasons = append(reasons, e.Error())
			}
		}
		if len(reasons) > 0 {
			return nil, invalid(reasons...)
		}
	}
	// Any other error (a string where a number belongs) is told better, with the field's path, by the schema below.

	rules, err := policyRules()
	if err != nil {
		return nil, err
	}
	defaulting.Default(obj, rules.structural)
	errs := validation.ValidateCustomResource(nil, obj, rules.schema)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, rules.structural, obj)...)
	if len(errs) == 0 {
		// As in the API server, CEL sees only objects whose types are right.
		celErrs, _ := rules.cel.Validate(context.Background(), nil, rules.structural, obj, nil, celconfig.RuntimeCELCostBudget)
		errs = append(errs, celErrs...)
	}
	if len(errs) > 0 {
		var reasons []string
		for _, e := range errs {
			reasons = append(reasons, explain(e, rules.structural))
		}
		return nil, invalid(reasons...)
	}
	policy = v1.EtcdSnapshotPolicy{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj, &policy); err != nil {
		return nil, invalid(err.Error())
	}
	return &policy, nil
}

// explain words a schema's error for people: the field once, what is wrong, and, where the schema can only show a
// pattern, what the field is.
func explain(e *field.Error, s *schema.Structural) string {
	text := strings.ReplaceAll(e.Error(), e.Field+" in body ", "")
	if e.Field == "" || e.Field == "<nil>" {
		return strings.TrimPrefix(text, "<nil>: ")
	}
	if !strings.Contains(e.Detail, "should match") {
		return text
	}
	for _, segment := range strings.Split(e.Field, ".") {
		name, index, _ := strings.Cut(segment, "[")
		prop, ok := s.Properties[name]
		if !ok {
			return text
		}
		s = &prop
		if index != "" && s.Items != nil {
			s = s.Items
			if s.Description == "" {
				s = &prop
			}
		}
	}
	if s.Description == "" {
		return text
	}
	return text + " (" + strings.Join(strings.Fields(strings.TrimSuffix(s.Description, ".")), " ") + ")"
}

func orMissing(v any) string {
	if v == nil {
		return "missing"
	}
	return fmt.Sprintf("%q", fmt.Sprint(v))
}

// onlyDocument gives the one YAML document in data that is not empty.
func onlyDocument(data []byte) ([]byte, error) {
	var found []byte
	r := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		doc, err := r.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		var any any
		if err := yaml.Unmarshal(doc, &any); err == nil && any == nil {
			continue // comments only
		}
		if found != nil {
			return nil, errors.New("more than one YAML document: give one policy a file")
		}
		found = doc
	}
	if found == nil {
		return nil, errors.New("empty: a manifest of kind " + v1.PolicyKind + " is expected")
	}
	return bytes.TrimSpace(found), nil
}

type rules struct {
	structural *schema.Structural
	schema     validation.SchemaValidator
	cel        *cel.Validator
}

// policyRules compiles the rules of the policy's CRD once.
var policyRules = sync.OnceValues(func() (*rules, error) {
	data, err := CRD(v1.PolicyResource)
	if err != nil {
		return nil, err
	}
	var def apiextv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(data, &def); err != nil {
		return nil, fmt.Errorf("read the embedded CRD: %w", err)
	}
	var internal apiextensions.JSONSchemaProps
	if err := apiextv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(def.Spec.Versions[0].Schema.OpenAPIV3Schema, &internal, nil); err != nil {
		return nil, fmt.Errorf("read the embedded CRD: %w", err)
	}
	s, err := schema.NewStructural(&internal)
	if err != nil {
		return nil, fmt.Errorf("read the embedded CRD: %w", err)
	}
	v, _, err := validation.NewSchemaValidator(&internal)
	if err != nil {
		return nil, fmt.Errorf("read the embedded CRD: %w", err)
	}
	return &rules{structural: s, schema: v, cel: cel.NewValidator(s, true, celconfig.PerCallLimit)}, nil
})
