// Draws a dashboard with Grafana's own components (@grafana/ui, @grafana/data) from its JSON and the answers of a
// Prometheus, both of which window.picture holds. There is no Grafana server behind it: where panels lie, their options
// and their queries are the JSON's, and what draws them is Grafana's.
import React from 'react';
import { createRoot } from 'react-dom/client';
import { lastValueFrom } from 'rxjs';
const {
  createTheme, dateTime, FieldType, getDisplayProcessor, getFieldDisplayValues, standardTransformers,
  standardTransformersRegistry, ThemeContext, toDataFrame, transformDataFrame,
} = require('@grafana/data');
// By require, for esbuild takes the default exports of CommonJS packages, of which @grafana/ui has many, for objects in its .mjs files.
const { BigValue, GlobalStyles, PanelChrome, Table, TimeSeries, VizRepeater } = require('@grafana/ui');

const { dashboard, answers, from, to } = window.picture;
const theme = createTheme({ colors: { mode: 'dark' } });
const column = 50, row = 36, gap = 8; // as wide and high as a cell of Grafana's grid on a screen of 1200 pixels

const infos = [standardTransformers.mergeTransformer, standardTransformers.organizeFieldsTransformer];
standardTransformersRegistry.setInit(() => infos.map((t) => ({ id: t.id, name: t.name, transformation: () => Promise.resolve(t) })));

// legend fills in a legend such as {{policy}}.
const legend = (format, labels) => format.replace(/{{\s*(\w+)\s*}}/g, (_, name) => labels[name] ?? '');

// configOf is a field's configuration: the panel's defaults and the overrides for its name.
function configOf(panel, name) {
  const config = structuredClone(panel.fieldConfig.defaults);
  config.custom = { axisPlacement: 'auto', ...config.custom };
  for (const o of panel.fieldConfig.overrides.filter((o) => o.matcher.id === 'byName' && o.matcher.options === name)) {
    for (const { id, value } of o.properties) {
      if (id.startsWith('custom.')) config.custom[id.slice(7)] = value;
      else config[id] = value;
    }
  }
  return config;
}

function withDisplay(panel, frame) {
  for (const field of frame.fields) {
    const displayName = field.config.displayNameFromDS;
    field.config = { ...configOf(panel, field.name), displayNameFromDS: displayName };
    if (field.type === FieldType.time) field.config.unit = undefined;
    field.display = getDisplayProcessor({ field, theme, timeZone: 'utc' });
  }
  return frame;
}

// series makes a frame of each series that Prometheus answered.
function series(panel) {
  let index = 0; // the colours go by it
  return panel.targets.flatMap((target) => answers[panel.id][target.refId].map((r) => {
    const points = r.values ?? [r.value];
    const frame = withDisplay(panel, toDataFrame({ refId: target.refId, fields: [
      { name: 'Time', type: FieldType.time, values: points.map(([t]) => t * 1000) },
      { name: 'Value', type: FieldType.number, labels: r.metric, values: points.map(([, v]) => Number(v)),
        config: { displayNameFromDS: legend(target.legendFormat, r.metric) } },
    ] }));
    frame.fields[1].state = { seriesIndex: index++ };
    return frame;
  }));
}

// rows makes a frame of each query, and does with them what the panel's transformations say.
async function rows(panel) {
  const frames = panel.targets.map(({ refId }) => {
    const all = answers[panel.id][refId];
    const labels = [...new Set(all.flatMap((r) => Object.keys(r.metric)))];
    return toDataFrame({ refId, fields: [
      { name: 'Time', type: FieldType.time, values: all.map((r) => r.value[0] * 1000) },
      ...labels.map((l) => ({ name: l, type: FieldType.string, values: all.map((r) => r.metric[l] ?? '') })),
      { name: `Value #${refId}`, type: FieldType.number, values: all.map((r) => Number(r.value[1])) },
    ] });
  });
  const [frame] = await lastValueFrom(transformDataFrame(panel.transformations, frames));
  for (const f of frame.fields) { // what is renamed is called so from here on
    f.name = f.config.displayName ?? f.name;
    f.config = {};
    f.state = null;
  }
  withDisplay(panel, frame);
  frame.fields.forEach((f, i) => { f.config.custom.width = i === 0 ? 235 : i === 1 ? 165 : undefined; f.config.custom.minWidth = 60; });
  return frame;
}

function Stat({ panel, width, height }) {
  const values = getFieldDisplayValues({ fieldConfig: panel.fieldConfig, reduceOptions: panel.options.reduceOptions,
    replaceVariables: (v) => v, theme, data: series(panel), timeZone: 'utc' });
  return <VizRepeater source={values} getValues={() => values} width={width} height={height} orientation={panel.options.orientation}
    itemSpacing={3} renderCounter={0} autoGrid renderValue={({ value, width, height, count }) => (
      <BigValue value={value.display} count={count} width={width} height={height} theme={theme} colorMode={panel.options.colorMode}
        graphMode={panel.options.graphMode} justifyMode={panel.options.justifyMode} textMode={panel.options.textMode} wideLayout />)} />;
}

function Panel({ panel, frame }) {
  const { x, y, w, h } = panel.gridPos;
  const style = { position: 'absolute', left: x * column + gap, top: y * row + gap };
  if (panel.type === 'row') {
    return <div style={{ ...style, padding: 6, fontSize: 16, fontWeight: 500 }}>⌄ {panel.title}</div>;
  }
  const chrome = { title: panel.title, width: w * column - gap, height: h * row - gap };
  return <div style={style}><PanelChrome {...chrome}>{(width, height) => {
    switch (panel.type) {
      case 'stat': return <Stat panel={panel} width={width} height={height} />;
      case 'timeseries': return <TimeSeries frames={series(panel)} structureRev={1} width={width} height={height} timeZone="utc"
        timeRange={{ from: dateTime(from), to: dateTime(to), raw: { from: dateTime(from), to: dateTime(to) } }} legend={panel.options.legend} />;
      case 'table': return <Table data={frame} width={width} height={height} initialSortBy={panel.options.sortBy} />;
    }
    throw new Error(`no renderer for a panel of type ${panel.type}`);
  }}</PanelChrome></div>;
}

async function main() {
  const frames = {};
  for (const panel of dashboard.panels) if (panel.type === 'table') frames[panel.id] = await rows(panel);
  createRoot(document.getElementById('dashboard')).render(
    <ThemeContext.Provider value={theme}><GlobalStyles />
      {dashboard.panels.map((p) => <Panel key={p.id} panel={p} frame={frames[p.id]} />)}
    </ThemeContext.Provider>);
}

main().catch((e) => { document.body.textContent = e.stack; });
