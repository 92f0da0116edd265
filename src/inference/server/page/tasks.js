// The fields that each task asks for, and examples to begin with.

const text = { name: "text", rows: 4 };
const textPair = [
  { name: "text_a", rows: 3 },
  { name: "text_b", rows: 2, optional: true },
];
const bothTexts = textPair.map((field) => ({ ...field, optional: false }));
const passage = "The lighthouse of Eddystone stands on rocks fourteen miles south-west of Plymouth. The first tower, made of wood by Henry Winstanley in 1698, was swept away by a storm five years later 🌊 together with its builder. John Smeaton's tower of 1759, shaped like the trunk of an oak, was taken down only because the rock below it had worn away; its upper part was put up again on Plymouth Hoe.";
const answerable = [
  { context: passage, question: "Who shaped his tower like an oak?" },
  { context: passage, question: "When was the first tower built?" },
];

const similarity = [
  { text_a: "A man is playing a guitar on the stage.", text_b: "Somebody makes music in front of an audience." },
  { text_a: "Two dogs run across the snow.", text_b: "The train to Lyon leaves at noon." },
];

const tasks = {
  classification: {
    fields: textPair,
    examples: [
      { text_a: "A quiet, tender film whose last ten minutes make up for every slow one before them." },
      { text_a: "The jokes are old, the songs are louder than they are good, and it is two hours long." },
    ],
  },
  multi_label: {
    fields: textPair,
    examples: [{ text_a: "The minister of sport opened the new stadium and promised lower taxes for clubs." }],
  },
  regression: { fields: textPair, examples: similarity },
  multiple_choice: {
    fields: [{ name: "article", rows: 6 }, { name: "question", rows: 1 }, { name: "options" }],
    examples: [
      {
        article: "Mara wanted to be at the market before anybody else. She had packed the honey the evening before, but in the morning the old van would not start. Her neighbour lent her his bicycle, and with twenty jars in two baskets she rode slowly down the hill. By the time she came to the square the best places were taken. Still, she had sold every jar by ten.",
        question: "Why did Mara arrive late at the market?",
        options: ["She had overslept.", "Her van did not start.", "She had to fill the jars first.", "The road was closed."],
      },
    ],
  },
  squad_v1: { fields: [{ name: "context", rows: 7 }, { name: "question", rows: 1 }], examples: answerable },
  squad_v2: {
    fields: [{ name: "context", rows: 7 }, { name: "question", rows: 1 }],
    examples: [...answerable, { context: passage, question: "How tall is the tower of Smeaton?" }],
  },
  token_classification: {
    fields: [text],
    examples: [
      { text: "Ada Lovelace met Charles Babbage in London in 1833 🎩; the Science Museum keeps what was built of his engine." },
      { text: "Airbus opened a second hall in Hamburg, and Anna Keller came from Toulouse to lead it." },
    ],
  },
  embedding_pairs: { fields: bothTexts, examples: similarity },
  fill_mask: {
    fields: [text],
    examples: [
      { text: "The capital of France is [MASK]." },
      { text: "She opened the [MASK] and looked out at the [MASK]." },
    ],
  },
  embeddings: { fields: [{ name: "text_a", rows: 4 }], examples: [{ text_a: "A boat lies at the pier, waiting for the tide." }] },
};

const inference = [
  { text_a: "A woman is pouring tea for two guests in the garden.", text_b: "Someone is outdoors." },
  { text_a: "The museum is closed on Mondays.", text_b: "One can visit the museum every day." },
];

export function taskOf(taskInfo) {
  const task = tasks[taskInfo.task];
  if (task.fields !== textPair) return task;
  const trained = taskInfo.text_columns ?? {};
  const pairs = Boolean(trained.text_b);
  if (trained.text_a && !pairs) {
    return { fields: textPair.slice(0, 1), examples: task.examples.map(({ text_a }) => ({ text_a })) };
  }
  const infers = taskInfo.labels?.some((label) => /entail|contradict/.test(label));
  return { fields: pairs ? bothTexts : textPair, examples: infers ? inference : pairs ? similarity : task.examples };
}
