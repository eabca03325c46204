package main

// notifications gives the schema of values' map of notifications: the API's list turned into a map by name, and files
// turned into references to the Secrets and ConfigMaps that are mounted in their place.
func (b *schemaBuilder) notifications() (object, error) {
	one, name, err := b.named("Notification", "One place that is told how runs end: a webhook or a ping.")
	if err != nil {
		return nil, err
	}
	properties := one["properties"].(object)
	for kind, keys := range map[string]string{"webhook": "the key url and, for what is signed, signing-key", "ping": "the key url"} {
		target := properties[kind].(object)
		p := target["properties"].(object)
		delete(p, "credentialsDir")
		delete(p, "caBundleFile")
		p["existingSecret"] = secretName("Secret in the release's namespace with " + keys + ". A run goes on without it.")
		p["caBundle"] = caBundle()
		target["required"] = []any{"existingSecret"}
		target["allOf"] = append(list(target["allOf"]), refuse(object{
			"type": "object", "not": object{"propertyNames": object{"not": object{"pattern": `^(url|URL|webhook(url|URL|Url)?|signing[kK]ey|secret|token|password)$`}}},
		}, "", "free of secrets, which its URL is: put it into the key url of a Secret and name that in existingSecret"))
	}
	return object{
		"type": "object", "maxProperties": 16, "additionalProperties": one,
		"allOf": []any{keysAreNames("notifications", name)},
	}, nil
}
