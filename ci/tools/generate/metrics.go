package main

// metrics gives the schema of monitoring.metrics: the API's spec.metrics, with files turned into references to the Secrets
// and ConfigMaps that are mounted in their place. Whether each node has metrics of its own follows from nodes.
func (b *schemaBuilder) metrics() (object, error) {
	spec, err := b.flattened("MetricsSpec")
	if err != nil {
		return nil, err
	}
	one, err := apiSchema(spec)
	if err != nil {
		return nil, err
	}
	properties := one["properties"].(object)
	delete(properties, "perNode")
	one["additionalProperties"] = false
	for _, kind := range []string{"pushgateway", "otlp"} {
		endpoint := properties[kind].(object)
		p := endpoint["properties"].(object)
		delete(p, "credentialsDir")
		delete(p, "caBundleFile")
		p["existingSecret"] = secretName("Secret in the release's namespace with the keys username and password, or the key token. A run goes on without it.")
		p["caBundle"] = caBundle()
		endpoint["allOf"] = append(list(endpoint["allOf"]), refuse(object{
			"type": "object", "not": object{"propertyNames": object{"not": object{"pattern": `^(user(name)?|password|token|headers|secret|authorization)$`}}},
		}, "", "free of secrets: put them into a Secret and name it in existingSecret"))
	}
	return one, nil
}
